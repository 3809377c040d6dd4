//! Runs MariaDB's own tests, with all their servers under the library. A test that fails is run again without the library, to
//! find failures of the environment.

use std::collections::BTreeMap;

use bedplate_mariadb_suite::mtr::{self, Outcome};
use bedplate_mariadb_suite::{Launch, Preload, Statistics};

use crate::common::{installation, is_stock, program, target};

/// The tests that run in continuous integration: tests of the two engines that start few servers of their own.
const QUICK: [&str; 3] = [
    "--suite=main,maria",
    "--do-test=^(myisam|maria|aria|index_merge_myisam|range_aria|partition_myisam|mix2_myisam)",
    "--skip-test=no-logging|page-checksum|log_dir_path|showlog|autozerofill|recover",
];

/// The suites of `BEDPLATE_TEST_MTR=all`. Their tables are of the two engines, or of the default engine.
const SUITES: &str = "main,maria,csv,gcol,handler,heap,parts,period,roles,sql_sequence,vcol,versioning";

fn selection() -> Vec<String> {
    match std::env::var("BEDPLATE_TEST_MTR").ok().filter(|value| !value.is_empty()).as_deref() {
        None => QUICK.iter().map(|argument| (*argument).to_owned()).collect(),
        Some("all") => vec![format!("--suite={SUITES}")],
        Some(suites) => vec![format!("--suite={suites}")],
    }
}

fn count(outcomes: &BTreeMap<String, Outcome>, wanted: Outcome) -> usize {
    outcomes.values().filter(|outcome| **outcome == wanted).count()
}

#[test]
fn the_suites_of_both_engines_pass() {
    let Some(_) = installation() else { return };
    let Some(folder) = mtr::folder() else {
        eprintln!("skipped: mariadb-test is not installed; `make setup` installs it");
        return;
    };
    // The suite's user writes the statistics.
    let statistics = tempfile::Builder::new().prefix("bedplate-mtr-").tempfile_in(target()).unwrap();
    std::fs::set_permissions(statistics.path(), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let launch = match is_stock() {
        true => Launch::Plain,
        false => Launch::Scan(mtr::everything(Preload {
            program: program(),
            memory_bytes: Some(1 << 30),
            statistics: Some(statistics.path().to_owned()),
            ..Preload::default()
        })),
    };
    let run = |launch: &Launch, arguments: &[String]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        mtr::run(&folder, launch, &target(), &arguments).unwrap()
    };
    let outcomes = run(&launch, &selection());
    let (passed, skipped) = (count(&outcomes, Outcome::Passed), count(&outcomes, Outcome::Skipped));
    let failed = mtr::failed(&outcomes);
    println!("{passed} passed, {skipped} were skipped, {} failed", failed.len());
    assert!(passed >= 20, "{outcomes:?}");
    if !failed.is_empty() {
        let plain = mtr::failed(&run(&Launch::Plain, &failed));
        println!("these fail without the library, too: {plain:?}");
        let again = mtr::failed(&run(&launch, &failed));
        println!("these fail with the library when they run again: {again:?}");
        let ours: Vec<_> = again.iter().filter(|name| !plain.contains(name)).collect();
        assert!(ours.is_empty(), "only with the library, these fail: {ours:?}");
    }
    if !is_stock() {
        let lines = Statistics::read(statistics.path()).unwrap();
        let lines: Vec<_> = lines.into_iter().filter(|line| line.program == "mariadbd").collect();
        let served = Statistics::sum(&lines, "reads_served");
        println!("{served} reads were served in {} servers", lines.len());
        assert!(served > 1000, "{lines:?}");
    }
}
