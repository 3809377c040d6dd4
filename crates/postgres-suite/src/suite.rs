//! PostgreSQL's own regression and isolation tests, and the parts of their output that may differ.
//!
//! `make setup` fetches them ([`folder`]). With the extension, plans have its node where they had a sequential scan, and
//! `EXPLAIN (ANALYZE)` shows the node's counters. [`normalise`] puts the name of a sequential scan back, removes the node's own
//! lines, and changes nothing else.

use std::path::PathBuf;

use crate::installation::cache_folder;
use crate::plan::NODE;

/// The folder into which `make setup` unpacks the tests of a major version, or the one that `BEDPLATE_POSTGRES_SUITE` names,
/// with the version in place of `%`. It may be missing.
pub fn folder(version: u32) -> PathBuf {
    let named = std::env::var("BEDPLATE_POSTGRES_SUITE").ok().filter(|value| !value.is_empty());
    match named {
        Some(named) => PathBuf::from(named.replace('%', &version.to_string())),
        None => cache_folder().join(format!("postgresql-suite-{version}")),
    }
}

/// The names of the node's own lines in a plan.
const NODE_LINES: [&str; 15] = [
    "Ordinary Scan",
    "Chunks Direct",
    "Blocks Direct",
    "Blocks From Buffer Manager",
    "Blocks At Start",
    "Blocks In Shared Buffers",
    "Blocks In Page Cache",
    "Blocks Torn",
    "Blocks Undecided",
    "Blocks Changed",
    "Blocks Not Read",
    "Waits",
    "Bytes Read",
    "Bytes Shared",
    "Wait Time",
];

/// Output of `psql` as it would be with a sequential scan in place of the extension's node. The lines of dashes below the title of
/// a single column are as long as its longest row, so they are made equal.
pub fn normalise(output: &str) -> String {
    let custom = format!("Custom Scan ({NODE})");
    let mut lines = Vec::new();
    // Lines of the node that were taken out of the result that is being read; its number of rows counts them.
    let mut taken = 0;
    for line in output.lines() {
        if line.trim().split_once(": ").is_some_and(|(name, _)| NODE_LINES.contains(&name)) {
            taken += 1;
            continue;
        }
        let is_rule = line.len() >= 3 && line.bytes().all(|byte| byte == b'-');
        lines.push(match (is_rule, row_count(line)) {
            (true, _) => "---".to_owned(),
            (false, Some(rows)) => format!("({} rows)", rows - std::mem::take(&mut taken)),
            (false, None) => line.replace(&custom, "Seq Scan"),
        });
    }
    lines.join("\n")
}

/// The number of rows in the line that ends a result.
fn row_count(line: &str) -> Option<usize> {
    let (number, unit) = line.strip_prefix('(')?.split_once(' ')?;
    (unit == "rows)" || unit == "row)").then(|| number.parse().ok()).flatten()
}

/// Output of `psql` without plans. It lacks the results of EXPLAIN and of the suite's functions that call it, and the
/// warnings of a function of the suite's that looks for the words `Seq Scan` in plans.
pub fn without_plans(output: &str) -> String {
    let mut is_plan = false;
    let mut lines = Vec::new();
    for line in output.lines() {
        let title = line.trim();
        is_plan |= title == "QUERY PLAN"
            || title == "jsonb_pretty"
            || title.starts_with("explain_") && !title.contains('(');
        if !is_plan && !line.contains("did not get seqscan plan for") {
            lines.push(line);
        }
        is_plan &= row_count(line).is_none();
    }
    lines.join("\n")
}

/// Whether two outputs are the same up to spaces, as for `diff -w`, which PostgreSQL's tests use.
pub fn is_same(left: &str, right: &str) -> bool {
    let bare = |line: &str| line.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    left.lines().map(bare).eq(right.lines().map(bare))
}

/// The first lines in which two outputs differ, up to spaces.
pub fn first_difference(left: &str, right: &str) -> String {
    let (left, right): (Vec<&str>, Vec<&str>) = (left.lines().collect(), right.lines().collect());
    let same = |at: &usize| match (left.get(*at), right.get(*at)) {
        (Some(left), Some(right)) => is_same(left, right),
        _ => false,
    };
    let at = (0..left.len().max(right.len())).find(|at| !same(at)).unwrap_or(0);
    let part = |lines: &[&str]| lines.iter().skip(at).take(6).copied().collect::<Vec<_>>().join("\n    ");
    format!("line {}, expected:\n    {}\n  found:\n    {}", at + 1, part(&left), part(&right))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQUENTIAL: &str = "explain select 1;\n     QUERY PLAN      \n---------------------\n Parallel Seq Scan on t\n(1 row)\n\n a \n---\n 1\n";
    const CUSTOM: &str = "explain select 1;\n      QUERY PLAN      \n----------------------------------\n Parallel Custom Scan (BedplateScan) on t\n(1 row)\n\n a \n---\n 1\n";

    #[test]
    fn the_node_is_a_sequential_scan() {
        assert!(!is_same(SEQUENTIAL, CUSTOM));
        assert!(is_same(&normalise(SEQUENTIAL), &normalise(CUSTOM)));
    }

    #[test]
    fn what_the_node_shows_of_itself_is_no_difference() {
        let analyzed =
            CUSTOM.replace("(1 row)", "   Chunks Direct: 0\n   Ordinary Scan: it is small\n(3 rows)");
        assert!(is_same(&normalise(SEQUENTIAL), &normalise(&analyzed)), "{}", normalise(&analyzed));
        let other = CUSTOM.replace("(1 row)", "   Heap Fetches: 0\n(2 rows)");
        assert!(!is_same(&normalise(SEQUENTIAL), &normalise(&other)));
    }

    #[test]
    fn everything_else_is_kept() {
        for (from, to) in [("(1 row)", "(2 rows)"), (" 1\n", " 2\n"), ("on t", "on u"), ("Parallel ", "")] {
            let changed = CUSTOM.replace(from, to);
            assert_ne!(changed, CUSTOM);
            assert!(!is_same(&normalise(SEQUENTIAL), &normalise(&changed)), "{changed}");
        }
        assert!(!is_same("a\nb", "a"));
    }

    #[test]
    fn a_plan_ends_with_its_number_of_rows() {
        let with = without_plans(CUSTOM);
        assert_eq!(with, "explain select 1;\n\n a \n---\n 1");
        let warned = format!("{CUSTOM}WARNING:  did not get seqscan plan for (a)\n");
        assert_eq!(without_plans(&warned), with);
    }

    #[test]
    fn a_difference_is_shown() {
        let text = first_difference("a\nb\nc", "a\n b\nd");
        assert!(text.starts_with("line 3") && text.contains("    c") && text.contains("    d"), "{text}");
    }
}
