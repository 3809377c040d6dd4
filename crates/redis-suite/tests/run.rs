//! Runs a suite of a few lines: checks tests that pass, fail and hang, and the end of processes that they start.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_redis_suite::{Outcome, Servers, Workspace, run};
use tempfile::TempDir;

/// The parts of the real suite that the driver changes or uses.
const HELPER: &str = r#"
set ::external 0
set ::num_failed 0
proc send_data_packet {fd status text {elapsed 0}} { error "the driver replaces this" }
proc test_client_main port { error "the driver replaces this" }
proc spawn_server {arguments} {
    exec /usr/bin/env ASAN_OPTIONS=allocator_may_return_null=1 {*}$arguments
}
proc test {name code} {
    send_data_packet $::test_server_fd testing $name
    if {[catch {uplevel 1 $code} error]} {
        send_data_packet $::test_server_fd err "$name in tests/unit/x.tcl\n$error"
    } else {
        send_data_packet $::test_server_fd ok $name
    }
}
source tests/$::unit.tcl
send_data_packet $::test_server_fd done $::unit
"#;

/// A suite with one unit, `unit/x`.
fn suite(unit: &str) -> TempDir {
    let suite = tempfile::tempdir().unwrap();
    fs::create_dir_all(suite.path().join("tests/unit")).unwrap();
    fs::write(suite.path().join("tests/test_helper.tcl"), HELPER).unwrap();
    fs::write(suite.path().join("tests/unit/x.tcl"), unit).unwrap();
    suite
}

/// The processes that work in a folder.
fn processes(folder: &Path) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let inside = |cwd: std::path::PathBuf| cwd.starts_with(folder);
    entries.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(inside)).count()
}

#[test]
fn outcomes_are_those_of_the_tests_and_servers_get_the_variables() {
    let suite = suite(
        "puts -nonewline {not a report}\n\
         test {variables are set} { if {[spawn_server {sh -c {echo $ONE-$TWO}}] ne {1-a b}} { error wrong } }\n\
         test {only for servers} { if {[info exists ::env(ONE)]} { error wrong } }\n\
         test {fails} { error {assertion:Expected 1} }\n\
         if {0} {\n\
         test {not reached} { }\n\
         }\n",
    );
    let mut workspace = Workspace::new(suite.path(), 21111).unwrap();
    workspace.server_variable("ONE", "1");
    workspace.server_variable("TWO", "a b");
    let outcomes =
        run(suite.path(), "unit/x", Servers::Started(&workspace), Duration::from_secs(60)).unwrap();
    assert_eq!(outcomes["variables are set"], Outcome::Passed);
    assert_eq!(outcomes["only for servers"], Outcome::Passed);
    assert_eq!(outcomes["fails"], Outcome::Failed("assertion:Expected 1".into()));
    assert!(matches!(outcomes["not reached"], Outcome::NotRun(_)));
    assert_eq!(outcomes.len(), 4);
}

#[test]
fn a_unit_that_hangs_is_ended_with_what_it_started() {
    let suite = suite("test {hangs} { exec sleep 1000 &; puts {about to hang}; after 1000000 }\n");
    let workspace = Workspace::new(suite.path(), 21111).unwrap();
    let folder = workspace.path().to_owned();
    let limit = Duration::from_secs(10);
    let started = Instant::now();
    let error = run(suite.path(), "unit/x", Servers::Started(&workspace), limit).unwrap_err();
    assert!(started.elapsed() >= limit);
    assert!(error.contains("unit/x has not ended after 10 s; its test is 'hangs'"), "{error}");
    assert!(error.contains("about to hang"), "{error}");
    assert_eq!(processes(&folder), 1, "the suite's process is ended, what it started is not yet");
    drop(workspace);
    assert_eq!(processes(&folder), 0);
    assert!(!folder.exists());
}

#[test]
fn a_unit_that_breaks_off_is_an_error() {
    for (unit, expected) in [
        ("error {no such thing}\n", "no such thing"),
        ("test {a} { }\nexit 0\n", "unit/x was not run to its end"),
        ("send_data_packet {} err {Can't start the Redis server}\n", "Can't start the Redis server"),
    ] {
        let suite = suite(unit);
        let workspace = Workspace::new(suite.path(), 21111).unwrap();
        let outcomes = run(suite.path(), "unit/x", Servers::Started(&workspace), Duration::from_secs(60));
        let error = outcomes.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_folder_that_is_kept_outlives_its_workspace() {
    let suite = suite("");
    let mut workspace = Workspace::new(suite.path(), 21111).unwrap();
    let folder = workspace.keep();
    drop(workspace);
    assert!(folder.join("src/redis-server").exists());
    fs::remove_dir_all(folder).unwrap();
}
