//! Every operator and its states (paper, table 1), through user space on the real kernel.

use bedplate_kerneldb::{Config, Database, Error, SetCondition, SetOptions, Written};

fn db() -> Database {
    Database::create(Config { memory_bytes: 64 << 20, max_sessions: 64, ..Config::default() }).unwrap()
}

#[test]
fn set_get_delete() {
    let db = db();
    let mut s = db.session().unwrap();
    assert_eq!(s.get(b"foo").unwrap(), None);
    assert!(matches!(s.set(b"foo", b"bar", SetOptions::default()).unwrap(), Written::Done { commit_ts: 1 }));
    let value = s.get(b"foo").unwrap().unwrap();
    assert_eq!(value.data, b"bar");
    assert_eq!(value.commit_ts, 1);
    assert_eq!(db.len(), 1);
    assert!(matches!(s.delete(b"foo").unwrap(), Written::Done { .. }));
    assert_eq!(s.delete(b"foo").unwrap(), Written::ConditionFailed);
    assert_eq!(s.get(b"foo").unwrap(), None);
    assert_eq!(db.len(), 0);
}
