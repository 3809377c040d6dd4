//! Tests that every peer behaves as the workloads require of a store, and that TPC-C's conditions
//! hold in it.

use super::Setting;
use super::lmdb::Lmdb;
use super::redb::Redb;
use super::rocksdb::RocksDb;
use crate::pool::store::Store;
use crate::pool::suite;

fn settings() -> [Setting; 2] {
    [false, true].map(|durable| Setting { budget: 16 << 20, durable })
}

fn passes<S: Store>(open: impl Fn(&std::path::Path, Setting) -> S) {
    for setting in settings() {
        let directory = tempfile::tempdir().unwrap();
        suite::behaves(&open(directory.path(), setting));
        // The data are there when the store is opened again.
        suite::remembers(&open(directory.path(), setting));
        let directory = tempfile::tempdir().unwrap();
        suite::runs_tpcc(&open(directory.path(), setting), if setting.durable { 20 } else { 300 });
    }
}

#[test]
fn lmdb() {
    passes(|directory, setting| Lmdb::open(directory, setting, 1).unwrap());
}

#[test]
fn lmdb_with_several_reads_in_a_transaction_sees_writes_of_its_own_session() {
    let directory = tempfile::tempdir().unwrap();
    suite::behaves(&Lmdb::open(directory.path(), settings()[0], 100).unwrap());
}

#[test]
fn redb() {
    passes(|directory, setting| Redb::open(directory, setting).unwrap());
}

#[test]
fn rocksdb() {
    if let Err(problem) = super::rocksdb::available() {
        println!("skipped: {problem}");
        return;
    }
    passes(|directory, setting| RocksDb::open(directory, setting).unwrap());
}
