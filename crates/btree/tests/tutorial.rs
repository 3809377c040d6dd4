//! The Rust program of `docs/store-tutorial.md` is the example, and prints the lines that the page shows.

#[path = "../examples/tutorial.rs"]
#[allow(dead_code)]
mod tutorial;

const PAGE: &str = include_str!("../../../docs/store-tutorial.md");

/// The code blocks of a language, one after the other.
fn blocks(language: &str) -> String {
    let opening = format!("```{language}\n");
    let block = |part: &'static str| part.split("```").next().unwrap();
    PAGE.split(&opening).skip(1).map(block).collect()
}

#[test]
fn the_example_is_the_program_of_the_page() {
    let example = include_str!("../examples/tutorial.rs");
    let (comment, program) = example.split_once("\n\n").unwrap();
    assert!(comment.starts_with("//!"));
    assert_eq!(program, blocks("rust"));
}

#[test]
fn the_program_prints_what_the_page_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stock");
    assert_eq!(tutorial::run(path.clone()).unwrap(), blocks("text"));
    let again = tutorial::run(path).unwrap();
    assert!(again.contains("fruit/apple: 14\n") && again.contains("fruit/pear: 10\n"), "{again}");
}
