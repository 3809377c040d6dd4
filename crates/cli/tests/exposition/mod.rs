//! Checks that text is in the exposition format of Prometheus, as `promtool check metrics` does, and gives its samples.

use std::collections::{HashMap, HashSet};

/// A sample: the name of its metric, its labels, and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: HashMap<String, String>,
    pub value: f64,
}

/// The samples of a text. It panics if the text is not well-formed.
pub fn check(text: &str) -> Vec<Sample> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line has no end");
    let (mut samples, mut families, mut series) = (Vec::new(), HashSet::new(), HashSet::new());
    // The family of the present lines, and its type.
    let (mut family, mut kind) = (String::new(), String::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect(line);
            assert!(!help.trim().is_empty(), "{line}");
            family = name.to_owned();
            assert!(families.insert(family.clone()), "{family} comes twice");
            let next = lines.next().expect("a type follows the help");
            let kind_of =
                next.strip_prefix("# TYPE ").and_then(|rest| rest.strip_prefix(&format!("{name} ")));
            kind = kind_of.unwrap_or_else(|| panic!("{next} does not give the type of {name}")).to_owned();
            assert!(["counter", "gauge", "histogram"].contains(&kind.as_str()), "{next}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{next}");
            for unit in ["milliseconds", "nanoseconds", "_ns", "_ms", "_pages", "_kb"] {
                assert!(!name.contains(unit), "{name} is not in base units");
            }
            assert!(lines.peek().is_some_and(|line| !line.starts_with('#')), "{name} has no samples");
            continue;
        }
        let sample = sample(line);
        assert!(sample.value >= 0.0, "{line}");
        let suffix = sample.name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} is not of {family}"));
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.contains(&suffix), "{line}");
        assert_eq!(suffix == "_bucket", sample.labels.contains_key("le"), "{line}");
        let key = line.rsplit_once(' ').unwrap().0.to_owned();
        assert!(series.insert(key), "{line} comes twice");
        samples.push(sample);
    }
    check_histograms(&samples);
    samples
}

/// Buckets rise to infinity, where they are the count.
fn check_histograms(samples: &[Sample]) {
    let mut latest: Option<(f64, f64)> = None;
    for sample in samples {
        if sample.name.ends_with("_bucket") {
            let bound: f64 = sample.labels["le"].parse().unwrap();
            if let Some((before, count)) = latest {
                assert!(bound > before && sample.value >= count, "{sample:?}");
            }
            latest = Some((bound, sample.value));
        } else if sample.name.ends_with("_count") {
            assert_eq!(latest.take(), Some((f64::INFINITY, sample.value)), "{sample:?}");
        }
    }
    assert_eq!(latest, None, "a histogram has no count");
}

fn is_name(name: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    name.starts_with(letter) && name.chars().all(|other| letter(other) || other.is_ascii_digit())
}

fn sample(line: &str) -> Sample {
    let at = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line} has no value"));
    let (name, mut rest) = line.split_at(at);
    assert!(is_name(name), "{line}");
    let mut labels = HashMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (name, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(name), "{line}");
            let (value, after) = unquote(quoted).unwrap_or_else(|| panic!("{line}: no end of a label"));
            assert!(labels.insert(name.to_owned(), value).is_none(), "{line}");
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = after.strip_prefix(',').unwrap_or_else(|| panic!("{line}"));
        }
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok());
    Sample { name: name.to_owned(), labels, value: value.unwrap_or_else(|| panic!("{line}: no value")) }
}

/// A label's value, and the text behind it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                other @ ('"' | '\\') => other,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
    None
}

#[test]
fn text_that_is_not_well_formed_is_noticed() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{pid=\"1\",x=\"a\\\"\\\\\"} 3\n\
        # HELP b_seconds B.\n# TYPE b_seconds histogram\nb_seconds_bucket{le=\"1\"} 2\n\
        b_seconds_bucket{le=\"+Inf\"} 2\nb_seconds_sum 0.5\nb_seconds_count 2\n";
    assert_eq!(check(good)[0].labels["x"], "a\"\\");
    for (from, to) in [
        ("# TYPE a_total counter\n", ""),
        ("counter", "gauge"),
        ("a_total{pid", "a{pid"),
        ("} 3", "} x"),
        ("\\\\\"} 3", "\\\\} 3"),
        ("\"+Inf\"} 2", "\"+Inf\"} 1"),
        ("count 2", "count 3"),
        ("b_seconds_count 2\n", ""),
        ("b_seconds", "a_total"),
        ("le=\"1\"", "le=\"x\""),
        (" 2\n", " 2"),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        assert!(std::panic::catch_unwind(|| check(&bad)).is_err(), "{bad}");
    }
}
