//! Tests `bedplate bench scan-tpch` with the smallest tables, by each engine that is installed: the shape of the report, and the
//! comparison of answers.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use bedplate_suite_support::programs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The scale factor. All queries run once at it, and DuckDB has their answers.
const SCALE: &str = "0.01";

/// The command, with the library that it preloads, built with the profile of this test.
fn bedplate() -> PathBuf {
    programs::build(&["scan-preload"]).unwrap();
    PathBuf::from(env!("CARGO_BIN_EXE_bedplate"))
}

fn run(engine: &str) -> Output {
    let mut command = Command::new(bedplate());
    command.args(["bench", "scan-tpch", "--json", "--engine", engine, "--scale", SCALE]);
    command.args(["--directory", env!("CARGO_TARGET_TMPDIR")]).output().unwrap()
}

/// Whether a service reads files of the tests' disk past the page cache.
fn is_served_disk() -> bool {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, [7; 4096]).unwrap();
    let service = bedplate_scan::Service::builder().settling_time(std::time::Duration::ZERO).build().unwrap();
    service.reader(&path).is_ok()
}

/// Runs an engine and checks its report. An engine that is not installed is skipped. `serves`: Bedplate serves tables of this size.
fn check(engine: &str, serves: bool) {
    let output = run(engine);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && said.contains("run `make") {
        return println!("skipped: {}", said.trim());
    }
    assert!(output.status.success(), "{engine}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["bench"], &report["config"]["engine"]), (&"scan-tpch".into(), &engine.into()));
    assert!(report["config"]["oracle"].as_str().unwrap().contains("DuckDB"), "{report}");
    if serves && is_served_disk() {
        assert_eq!(report["config"]["bedplate_serves_query_6"], true, "{engine}: {}", report["config"]);
    }
    for name in [
        "time_of_vanilla",
        "cpu_of_vanilla",
        "worst_query_of_vanilla",
        "device_over_files_8",
        "time_of_vanilla_8",
    ] {
        let ratio = report["ratios"][name].as_f64();
        assert!(ratio.is_some_and(|ratio| ratio >= 0.0), "{engine} {name}: {ratio:?}");
    }
    let rows = report["rows"].as_array().unwrap();
    let count = |figure: &str, cache: &str| {
        let is_it = |row: &&Value| row["figure"] == figure && (cache.is_empty() || row["cache"] == cache);
        rows.iter().filter(is_it).count()
    };
    // Both sides ran all queries warm and query 6 cold. The figures with several clients have rows.
    assert_eq!(count("8", "warm"), 2 * 22, "{engine}");
    assert!(count("8", "cold") >= 4, "{engine}");
    assert!(["11", "12", "13"].iter().all(|figure| count(figure, "") >= 3), "{engine}: {rows:?}");
    assert!(rows.iter().all(|row| row.get("time_ns").is_none_or(|time| time.as_f64() > Some(0.0))));
}

#[test]
fn duckdb_answers_all_queries_with_and_without_bedplate() {
    check("duckdb", true);
}

#[test]
fn postgres_answers_all_queries_with_and_without_bedplate() {
    check("postgres", false);
}

#[test]
fn datafusion_answers_all_queries_with_and_without_bedplate() {
    check("datafusion", true);
}

#[test]
fn an_engine_must_be_chosen_and_known() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        let output = command.args(["bench", "scan-tpch"]).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for said in [run(&[]), run(&["--engine", "none"])] {
        assert!(["postgres", "duckdb", "datafusion"].iter().all(|name| said.contains(name)), "{said}");
    }
    let said = run(&["--engine", "duckdb", "--scale", "0.001"]);
    assert!(said.contains("0.01") && said.contains("100"), "{said}");
}

/// A signal leaves neither tables nor processes.
#[test]
fn an_interrupted_benchmark_removes_its_files() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(bedplate());
    command.args(["bench", "scan-tpch", "--engine", "duckdb", "--scale", SCALE, "--directory"]);
    let mut child = command.arg(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    let is_empty = || folder.path().read_dir().unwrap().next().is_none();
    while is_empty() {
        if child.try_wait().unwrap().is_some() {
            let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
            assert!(said.contains("run `make"), "{said}");
            return println!("skipped: {}", said.trim());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(is_empty(), "it leaves files");
}
