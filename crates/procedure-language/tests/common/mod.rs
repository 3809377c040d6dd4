//! Functions that the tests on a real kernel share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::path::Path;

use bedplate_kerneldb::{Config, Database, EngineKind, sdk};

/// Whether eBPF programs can be loaded here; if not, prints the reason.
pub fn can_run() -> bool {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: loading eBPF programs needs root");
        return false;
    }
    true
}

/// A small database of an engine.
pub fn database_on(engine: EngineKind) -> Database {
    let config = Config { engine, memory_bytes: 64 << 20, max_sessions: 16, ..Config::default() };
    Database::create(config).unwrap()
}

/// A small database in arenas.
pub fn database() -> Database {
    database_on(EngineKind::Arena)
}

/// A small database of each engine.
pub fn databases() -> [Database; 2] {
    [EngineKind::Arena, EngineKind::HashMap].map(database_on)
}

/// A file in the folder of examples.
pub fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Compiles C text to a library. A warning is an error, because the writer of a procedure cannot do anything about it.
pub fn object(c: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    sdk::write_headers(folder.path()).unwrap();
    let source = folder.path().join("test.c");
    std::fs::write(&source, c).unwrap();
    sdk::compile(folder.path(), &source, &["-Werror"]).unwrap_or_else(|error| panic!("{error}\n{c}"))
}

/// Compiles a program of the procedure language to a library.
pub fn compiled(source: &str) -> Vec<u8> {
    match bedplate_procedure_language::compile(source, "test.kdb") {
        Ok(c) => object(&c),
        Err(errors) => panic!("{errors:#?}\n{source}"),
    }
}

/// All keys of a database with their values and expiries.
pub fn contents(database: &Database) -> BTreeMap<Vec<u8>, (Vec<u8>, u64)> {
    let snapshot = database.snapshot().unwrap();
    let mut keys = BTreeMap::new();
    snapshot
        .scan(0, snapshot.positions(), &mut |item| {
            keys.insert(item.key.to_vec(), (item.value.to_vec(), item.expire_at_ms.unwrap_or_default()));
        })
        .unwrap();
    keys
}

/// The seed of a randomized test, which is printed.
pub fn seed() -> u64 {
    let named = std::env::var("BEDPLATE_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = named.unwrap_or_else(rand::random);
    println!("BEDPLATE_TEST_SEED={seed}");
    seed
}
