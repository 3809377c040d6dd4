//! The driver's report, and the outcome of each test.

use std::collections::{BTreeMap, VecDeque};

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed, with this explanation.
    Failed(String),
    /// The suite itself did not run it, for this reason.
    NotRun(String),
}

/// The tests of a unit with their outcomes. A name that occurs several times has passed if all of them have.
pub type Outcomes = BTreeMap<String, Outcome>;

/// Number of the suite's latest output lines that are kept for an error.
const PRINTED_LINES: usize = 20;

/// The reports of the driver so far.
#[derive(Default)]
pub struct Report {
    pub outcomes: Outcomes,
    /// The test that began last.
    pub current: String,
    /// Whether the unit was run to its end.
    pub is_done: bool,
    /// Failures outside of tests. The rest of the group in which they happened was not run.
    pub stray: Vec<String>,
    /// The latest lines that are no reports.
    printed: VecDeque<String>,
}

impl Report {
    /// Takes a line of the driver's output.
    pub fn line(&mut self, line: &str) {
        let Some((status, text)) = line.split_once('\t').and_then(|(s, hex)| Some((s, decode(hex)?))) else {
            if !line.trim().is_empty() {
                self.printed.push_back(line.to_owned());
            }
            if self.printed.len() > PRINTED_LINES {
                self.printed.pop_front();
            }
            return;
        };
        match status {
            "testing" => self.current = text,
            "ok" => self.add(text, Outcome::Passed),
            "err" => match text.strip_prefix(&self.current) {
                Some(details) if !self.current.is_empty() => {
                    let details = details.lines().skip(1).take(6).collect::<Vec<_>>().join("\n    ");
                    self.add(self.current.clone(), Outcome::Failed(details));
                }
                _ => self.stray.push(text),
            },
            "exception" => self.stray.push(text),
            "skip" => self.add(text, Outcome::NotRun("skipped".into())),
            "ignore" => {
                // A report without a name is about a group of tests.
                if let Some((name, reason)) = split_ignored(&text) {
                    self.add(name.to_owned(), Outcome::NotRun(reason.to_owned()));
                }
            }
            "done" => self.is_done = true,
            _ => {}
        }
    }

    /// The latest lines that are no reports.
    pub fn printed(&self) -> String {
        self.printed.iter().map(|line| format!("    {line}\n")).collect()
    }

    fn add(&mut self, name: String, outcome: Outcome) {
        let slot = self.outcomes.entry(name).or_insert(Outcome::Passed);
        if *slot == Outcome::Passed {
            *slot = outcome;
        }
    }
}

fn decode(hex: &str) -> Option<String> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(digits).collect();
    Some(String::from_utf8_lossy(&bytes?).into_owned())
}

/// Splits "name: reason" before one of the suite's reasons; both parts can contain colons.
fn split_ignored(text: &str) -> Option<(&str, &str)> {
    const REASONS: [&str; 3] = [": Tag: ", ": Not supported ", ": large memory flag "];
    let at = REASONS.iter().filter_map(|reason| text.find(reason)).min()?;
    Some((&text[..at], &text[at + 2..]))
}

/// The names of the tests in a unit that are written as they are, without variables.
pub fn literal_names(source: &str) -> Vec<String> {
    let name = |line: &str| {
        let rest = line.trim_start().strip_prefix("test ")?.trim_start();
        if let Some(rest) = rest.strip_prefix('{') {
            return Some(rest[..rest.find("} {")?].to_owned());
        }
        let rest = rest.strip_prefix('"')?;
        let name = &rest[..rest.find("\" {")?];
        (!name.contains(['$', '[', '\\'])).then(|| name.to_owned())
    };
    source.lines().filter_map(name).collect()
}

#[test]
fn reports_and_printed_lines_are_told_apart() {
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut report = Report::default();
    for (status, text) in [
        ("testing", "a"),
        ("ok", "a"),
        ("testing", "b"),
        ("err", "b in tests/unit/x.tcl\nExpected 1"),
        ("err", "Can't start the Redis server"),
        ("ignore", "c: large memory flag not provided"),
        ("ignore", "Tag: slow denied"),
        ("skip", "d"),
    ] {
        report.line(&format!("{status}\t{}", hex(text)));
        report.line("");
    }
    report.line("Waiting for process 7 to exit...");
    let not_run = |why: &str| Outcome::NotRun(why.into());
    let expected = [
        ("a", Outcome::Passed),
        ("b", Outcome::Failed("Expected 1".into())),
        ("c", not_run("large memory flag not provided")),
        ("d", not_run("skipped")),
    ];
    assert_eq!(report.outcomes, expected.map(|(name, outcome)| (name.to_owned(), outcome)).into());
    assert_eq!(report.stray, ["Can't start the Redis server"]);
    assert_eq!(report.printed(), "    Waiting for process 7 to exit...\n");
    assert!(!report.is_done);
    report.line(&format!("done\t{}", hex("unit/x")));
    assert!(report.is_done);
}

#[test]
fn names_that_are_written_as_they_are_are_found() {
    let source = "test {one} {\n  test \"two\" {\ntest \"n $i\" {\nproc test {name} {\ntest {a b} {x} {y}\n";
    assert_eq!(literal_names(source), ["one", "two", "a b"]);
}
