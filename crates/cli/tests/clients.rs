//! Client libraries of Redis, as they are, against `bedplate kv serve`.
//!
//! Each program in `clients/` does what applications do with a library: connections and pools, values and their options, expiry,
//! pipelines, transactions, scripts, locks, iteration, binary data, reconnection, passwords, and errors. `docs/redis-compatibility.md`
//! lists the libraries, and this test fails if a version or a protocol in that list is another one than the one that has run.
//! `make setup` fetches the libraries. Where a language's tools are missing, its tests say that they are skipped.

mod clients {
    pub mod library;
}
mod running;

use std::collections::BTreeSet;

use clients::library::{Language, run};
use running::Server;

/// Runs programs of a language, one after the other. Each prints a line `LIBRARY VERSION PROTOCOL` for each run of its own.
fn check(language: Language, programs: &[&[&str]], libraries: &[&str]) {
    if !language.is_there() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &["--max-clients", "128"]);
    let mut ran = BTreeSet::new();
    for program in programs {
        let output = run(language.program(program[0]).args(arguments_for(&program[1..], server.port)));
        ran.extend(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned));
    }
    let is_of_language = |line: &String| libraries.contains(&line.split(' ').next().unwrap());
    let listed = documented().into_iter().filter(is_of_language).collect();
    assert_eq!(ran, listed, "left: what ran; right: docs/redis-compatibility.md");
}

/// `ADDRESS` is the server's address as one word, `HOST` and `PORT` are its parts.
fn arguments_for(arguments: &[&str], port: u16) -> Vec<String> {
    let replace = |argument: &&str| match *argument {
        "ADDRESS" => format!("127.0.0.1:{port}"),
        "HOST" => "127.0.0.1".to_owned(),
        "PORT" => port.to_string(),
        other => other.to_owned(),
    };
    arguments.iter().map(replace).collect()
}

/// The rows of the table of client libraries, as the programs print them.
fn documented() -> Vec<String> {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/redis-compatibility.md"));
    let text = text.unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("Client libraries\n"));
    let mut lines = Vec::new();
    for row in section
        .expect("the section of client libraries")
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
    {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let (library, version, protocols) = (cells[1], cells[3], cells[4]);
        lines.extend(protocols.split(", ").map(|protocol| format!("{library} {version} {protocol}")));
    }
    lines
}

#[test]
fn python() {
    check(Language::Python, &[&["smoke.py", "HOST", "PORT"]], &["redis-py"]);
}

#[test]
fn javascript() {
    let programs: [&[&str]; 3] = [
        &["node_redis.js", "HOST", "PORT", "redis"],
        &["node_redis.js", "HOST", "PORT", "redis-5"],
        &["ioredis.js", "HOST", "PORT"],
    ];
    check(Language::Node, &programs, &["node-redis", "ioredis"]);
}

#[test]
fn go() {
    check(Language::Go, &[&["clients", "smoke", "ADDRESS"]], &["go-redis"]);
}

#[test]
fn java() {
    let programs: [&[&str]; 2] = [&["JedisSmoke", "HOST", "PORT"], &["LettuceSmoke", "HOST", "PORT"]];
    check(Language::Java, &programs, &["Jedis", "Lettuce"]);
}
