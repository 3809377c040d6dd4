//! The list of Redis's tests that are expected not to pass. It is a part of the documentation.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_redis_suite::{Outcome, Outcomes};

/// The list, as `docs/redis-compatibility.md` has it.
pub struct List {
    /// The reasons that the list may give.
    reasons: BTreeSet<String>,
    /// The tests of each file with their reasons. Names are escaped.
    units: BTreeMap<String, BTreeMap<String, String>>,
}

/// The headings of the documentation below which the list is.
const REASONS: &str = "### Reasons";
const UNIT: &str = "### unit/";

impl List {
    /// Reads the list out of the documentation's text.
    pub fn parse(text: &str) -> List {
        let mut list = List { reasons: BTreeSet::new(), units: BTreeMap::new() };
        let mut heading = "";
        for line in text.lines() {
            if line.starts_with('#') {
                heading = line;
                if heading.starts_with(UNIT) {
                    list.units.insert(heading.trim_start_matches("### ").to_owned(), BTreeMap::new());
                }
                continue;
            }
            let Some((left, right)) = columns(line) else { continue };
            if heading == REASONS {
                list.reasons.insert(left);
            } else if heading.starts_with(UNIT) {
                let tests = list.units.get_mut(heading.trim_start_matches("### ")).expect("just inserted");
                assert!(tests.insert(left, right).is_none(), "a test is twice in the list: {line}");
            }
        }
        list
    }

    /// The files of the suite that are run.
    pub fn units(&self) -> Vec<String> {
        self.units.keys().cloned().collect()
    }

    /// Number of tests in the list.
    pub fn len(&self) -> usize {
        self.units.values().map(BTreeMap::len).sum()
    }

    /// Errors in the list itself.
    pub fn check(&self) -> Vec<String> {
        let tests = self.units.values().flatten();
        let unknown = tests.filter(|(_, reason)| !self.reasons.contains(*reason));
        unknown.map(|(name, reason)| format!("'{name}': the reason '{reason}' is not explained")).collect()
    }

    /// Compares a file's outcomes with the list; returns the differences.
    pub fn compare(&self, unit: &str, outcomes: &Outcomes) -> Vec<String> {
        let listed = &self.units[unit];
        let mut wrong = Vec::new();
        for (name, outcome) in outcomes {
            match (outcome, listed.get(&escape(name))) {
                (Outcome::Passed, Some(reason)) => {
                    wrong.push(format!("{unit}: '{name}' passes, but is on the list ({reason})"));
                }
                (Outcome::Failed(details), None) => {
                    wrong.push(format!(
                        "{unit}: '{name}' fails:\n    {details}\n    row: | {} | ? |",
                        escape(name)
                    ));
                }
                (Outcome::NotRun(why), None) => {
                    let row = escape(name);
                    wrong.push(format!("{unit}: '{name}' was not run: {why}\n    row: | {row} | ? |"));
                }
                _ => {}
            }
        }
        let names: BTreeSet<_> = outcomes.keys().map(|name| escape(name)).collect();
        let gone = listed.keys().filter(|name| !names.contains(*name));
        wrong.extend(gone.map(|name| format!("{unit}: '{name}' is on the list, but there is no such test")));
        wrong
    }
}

/// A test's name as it is written in a table of Markdown.
fn escape(name: &str) -> String {
    let mut escaped = String::new();
    for c in name.chars() {
        if matches!(c, '|' | '*' | '_' | '`' | '<' | '\\' | '$') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// The two columns of a table's row; nothing for its head.
fn columns(line: &str) -> Option<(String, String)> {
    let inner = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let at = inner.rfind(" | ")?;
    let (left, right) = (&inner[..at], &inner[at + 3..]);
    (!["Test", "Reason"].contains(&left)).then(|| (left.to_owned(), right.to_owned()))
}

#[test]
fn differences_are_found() {
    let text = "### Reasons\n| Reason | Meaning |\n|---|---|\n| lists | none |\n\
                ### unit/x\n| Test | Reason |\n|---|---|\n| a \\| b | lists |\n| gone | lists |\n| c | other |\n";
    let list = List::parse(text);
    assert_eq!(list.len(), 3);
    assert_eq!(list.check().len(), 1, "'other' is not explained");
    let failed = || Outcome::Failed("why".into());
    let outcomes = |entries: &[(&str, Outcome)]| {
        let mut all = Outcomes::new();
        for (name, outcome) in entries {
            all.insert((*name).to_owned(), outcome.clone());
        }
        list.compare("unit/x", &all)
    };
    let expected = [("a | b", failed()), ("c", failed()), ("gone", failed()), ("d", Outcome::Passed)];
    assert_eq!(outcomes(&expected), Vec::<String>::new());
    let none = Outcome::NotRun("why".into());
    let other = [("a | b", Outcome::Passed), ("c", none.clone()), ("d", failed()), ("e", none)];
    // One passes, one is gone, one fails, one was not run.
    assert_eq!(outcomes(&other).len(), 4);
}
