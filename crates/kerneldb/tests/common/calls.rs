//! Procedures for tests of calls.

use std::sync::OnceLock;

use bedplate_kerneldb::{Config, Error, Reply, Session, sdk};

use super::small;

/// The arena engine with several partitions.
pub fn partitioned() -> Config {
    Config { partitions: 3, memory_bytes: 96 << 20, ..small() }
}

pub fn refused(result: Result<Reply, Error>) -> String {
    match result {
        Err(Error::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

pub fn balance(session: &mut Session, name: &[u8]) -> i64 {
    match session.call("account_balance", &[name]).unwrap() {
        Reply::Value(text) => String::from_utf8(text).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The procedures of `libraries/test.bpf.c`, compiled as users compile theirs.
pub fn compiled() -> &'static [u8] {
    static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        sdk::write_headers(folder.path()).unwrap();
        let source = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libraries/test.bpf.c"));
        sdk::compile(folder.path(), source, &[]).unwrap()
    })
}
