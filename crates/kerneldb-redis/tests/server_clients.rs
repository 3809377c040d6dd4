//! Clients that people use, unchanged.

mod common;
mod server;

use std::process::Command;

use common::can_run;
use server::{config, start};

/// Runs a program with a time limit; `None` (and a word about it) if it is not installed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new("timeout").arg("60").arg(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.code() == Some(127) {
        println!("skipped: {program} is not installed");
        return None;
    }
    assert!(out.status.success(), "{program} {args:?}: {text} {}", String::from_utf8_lossy(&out.stderr));
    Some(text)
}

#[test]
fn redis_cli_and_benchmark() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let port = running.addr.port().to_string();
    if let Some(out) = run("redis-cli", &["-p", &port, "set", "k", "v"]) {
        assert_eq!(out, "OK\n");
        assert_eq!(run("redis-cli", &["-p", &port, "get", "k"]).unwrap(), "v\n");
        assert_eq!(run("redis-cli", &["-3", "-p", &port, "get", "none"]).unwrap(), "\n");
    }
    for (pipeline, data) in [("1", "16"), ("16", "16"), ("16", "1024")] {
        let n = if pipeline == "1" { "4000" } else { "20000" };
        let args = ["-p", &port, "-n", n, "-c", "50", "-P", pipeline, "-d", data, "-r", "500", "--csv"];
        let tests = ["-t", "ping_inline,ping_mbulk,set,get,incr,mset"];
        if let Some(out) = run("redis-benchmark", &[&args[..], &tests[..]].concat()) {
            assert!(out.matches("\"GET\"").count() == 1 && !out.contains("ERR"), "{out}");
        }
    }
    running.finish();
}
