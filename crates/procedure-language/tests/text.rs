//! The compiler answers every text.

mod common;

use bedplate_procedure_language::{compile, limits::ERRORS_MAX};
use common::{example, seed};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

fn check(source: &str) -> bool {
    match compile(source, "test.kdb") {
        Ok(c) => {
            assert!(c.starts_with("/* ") && c.ends_with("}\n"), "{source}\n{c}");
            true
        }
        Err(errors) => {
            assert!((1..=ERRORS_MAX).contains(&errors.len()), "{source}");
            let lines = source.split('\n').count();
            assert!(
                errors.iter().all(|e| (1..=lines).contains(&e.line) && e.column >= 1),
                "{source}: {errors:?}"
            );
            false
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_text_is_answered(source in ".{0,200}") {
        check(&source);
    }

    #[test]
    fn random_words_are_answered(words in proptest::collection::vec(0..WORDS.len(), 0..80)) {
        check(&words.iter().map(|word| WORDS[*word]).collect::<Vec<_>>().join(" "));
    }
}

const WORDS: &[&str] = &[
    "const",
    "readonly",
    "procedure",
    "a",
    "b",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    ":",
    "integer",
    "text",
    "..",
    "let",
    "var",
    "get",
    "set",
    "insert",
    "update",
    "delete",
    "require",
    "if",
    "else",
    "for",
    "in",
    "up",
    "to",
    "refuse",
    "reply",
    "ok",
    "nil",
    "value",
    "found",
    "missing",
    "length",
    "now",
    "and",
    "or",
    "not",
    "keep",
    "expiry",
    "expire",
    "at",
    "NO",
    "\"x\"",
    "1",
    "9223372036854775808",
    "=",
    "==",
    "<",
    "+",
    "-",
    "*",
    "/",
    "%",
    "procedure a() {",
    "reply ok; }",
];

/// The examples with words removed, doubled, and exchanged.
#[test]
fn damaged_programs_are_answered() {
    let mut rng = SmallRng::seed_from_u64(seed());
    let rounds: usize = std::env::var("BEDPLATE_TEST_PROGRAMS").map_or(3000, |count| count.parse().unwrap());
    let mut accepted = 0;
    for name in ["accounts.kdb", "voter.kdb", "stock.kdb"] {
        let source = example(name);
        assert!(check(&source));
        let words: Vec<&str> = source.split_inclusive(|c: char| !c.is_ascii_alphanumeric()).collect();
        for _ in 0..rounds / 3 {
            let mut words = words.clone();
            for _ in 0..rng.random_range(1..4) {
                damage(&mut words, &mut rng);
            }
            accepted += u32::from(check(&words.concat()));
        }
    }
    assert!(accepted > 0, "some damage, as in comments, leaves a program");
}

fn damage(words: &mut Vec<&str>, rng: &mut SmallRng) {
    let (at, other) = (rng.random_range(0..words.len()), rng.random_range(0..words.len()));
    match rng.random_range(0..4) {
        0 => drop(words.remove(at)),
        1 => words.insert(at, words[other]),
        2 => words.swap(at, other),
        _ => words.truncate(at.max(words.len() / 2)),
    }
}

/// Deep and long texts do not exhaust the stack.
#[test]
fn deep_texts_are_answered() {
    let deep = 60_000;
    for part in
        ["(", "{", "[", "not ", "- ", "if 1 < 2 {", "get [1] else {", "1 + ", "a == ", "for i in 1..2 {"]
    {
        for (before, after) in
            [("", ""), ("procedure p() {", "}"), ("procedure p() { reply ", ";}"), ("const a = ", ";")]
        {
            check(&format!("{before}{}{after}", part.repeat(deep / part.len())));
        }
    }
    check(&"\"".repeat(deep));
    check(&"ä".repeat(deep));
    check(&format!(
        "procedure p(n: integer) {{ if n == 1 {{ reply ok; }} {} }}",
        "else if n == 2 { reply ok; }".repeat(5000)
    ));
}
