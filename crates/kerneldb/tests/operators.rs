//! Every operator and its states (paper, table 1), through user space on the real kernel.

mod common;

use bedplate_kerneldb::{
    EngineKind, Error, KEY_MAX, Op, SetCondition, SetOptions, TX_KEYS_MAX, VALUE_MAX, Written,
};
use common::{can_run, variants};

fn put(s: &mut bedplate_kerneldb::Session, key: &[u8], value: &[u8]) {
    assert!(matches!(s.set(key, value, SetOptions::default()).unwrap(), Written::Done { .. }));
}

/// Repeats a transaction until it commits. The collector may hold an entry that the transaction needs. If the collector's thread
/// is preempted then, the operation is a conflict, or busy.
fn transaction(
    s: &mut bedplate_kerneldb::Session,
    mut operations: impl FnMut(&mut bedplate_kerneldb::Session) -> Result<(), Error>,
) {
    loop {
        s.begin().unwrap();
        match operations(s) {
            Ok(()) => {
                s.commit().unwrap();
                return;
            }
            Err(Error::Conflict | Error::Busy) => s.rollback().unwrap(),
            Err(e) => panic!("{e}"),
        }
    }
}

fn data(s: &mut bedplate_kerneldb::Session, key: &[u8]) -> Option<Vec<u8>> {
    s.get(key).unwrap().map(|v| v.data)
}

#[test]
fn auto_commit() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        assert_eq!(data(&mut s, b"foo"), None, "{name}");
        put(&mut s, b"foo", b"bar");
        assert_eq!(data(&mut s, b"foo").unwrap(), b"bar");
        assert_eq!(db.len(), 1);
        put(&mut s, b"foo", b"");
        assert_eq!(data(&mut s, b"foo").unwrap(), b"");
        assert!(matches!(s.delete(b"foo").unwrap(), Written::Done { .. }));
        assert_eq!(s.delete(b"foo").unwrap(), Written::ConditionFailed);
        assert_eq!(data(&mut s, b"foo"), None);
        assert_eq!(db.len(), 0, "{name}");
        assert_eq!(db.stats().bytes, 0, "{name}");
    }
}

#[test]
fn conditions_and_compare_and_set() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        let absent = SetOptions { condition: SetCondition::IfAbsent, ..SetOptions::default() };
        let present = SetOptions { condition: SetCondition::IfPresent, ..SetOptions::default() };
        for transaction in [false, true] {
            if transaction {
                s.begin().unwrap();
            }
            assert_eq!(s.set(b"k", b"1", present).unwrap(), Written::ConditionFailed, "{name}");
            assert!(matches!(s.set(b"k", b"1", absent).unwrap(), Written::Done { .. }));
            assert_eq!(s.set(b"k", b"2", absent).unwrap(), Written::ConditionFailed);
            assert!(matches!(s.set(b"k", b"3", present).unwrap(), Written::Done { .. }));
            assert_eq!(s.compare_and_set(b"k", b"1", b"4").unwrap(), Written::ConditionFailed);
            assert!(matches!(
                s.compare_and_set(b"k", b"3", b"a longer value").unwrap(),
                Written::Done { .. }
            ));
            assert_eq!(s.compare_and_set(b"k", b"a longer valuE", b"4").unwrap(), Written::ConditionFailed);
            assert!(matches!(
                s.compare_and_set(b"k", b"a longer value", b"5").unwrap(),
                Written::Done { .. }
            ));
            assert_eq!(data(&mut s, b"k").unwrap(), b"5");
            assert!(matches!(s.delete(b"k").unwrap(), Written::Done { .. }));
            assert_eq!(s.compare_and_set(b"k", b"5", b"6").unwrap(), Written::ConditionFailed);
            if transaction {
                s.commit().unwrap();
            }
        }
        assert_eq!(db.len(), 0, "{name}");
    }
}

#[test]
fn sizes() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        let mut log = db.log_reader();
        for klen in [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 250, KEY_MAX] {
            let key: Vec<u8> = (0..klen).map(|i| i as u8).collect();
            for vlen in [0, 1, 7, 8, 9, 63, 64, 65, 1000, 4096, 32_767, VALUE_MAX - 1, VALUE_MAX] {
                let value: Vec<u8> = (0..vlen).map(|i| (i * 31 + klen) as u8).collect();
                put(&mut s, &key, &value);
                assert_eq!(data(&mut s, &key).unwrap(), value, "{name}: {klen} {vlen}");
                if let Some(log) = &mut log {
                    let mut logged = Vec::new();
                    log.drain(usize::MAX, &mut |txn| logged.extend(txn.ops));
                    let expected = Op::Put { key: key.clone(), value, expire_at_ms: None };
                    assert_eq!(logged, [expected], "{name}: {klen} {vlen}");
                }
            }
        }
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(matches!(s.get(b""), Err(Error::TooLarge(_))));
        assert!(matches!(s.get(&[0; KEY_MAX + 1]), Err(Error::TooLarge(_))));
        let huge = vec![0; VALUE_MAX + 1];
        assert!(matches!(s.set(b"k", &huge, SetOptions::default()), Err(Error::TooLarge(_))));
    }
}

#[test]
fn commit_and_roll_back() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        let mut other = db.session().unwrap();
        put(&mut s, b"a", b"1");
        s.begin().unwrap();
        assert!(matches!(s.begin(), Err(Error::State)));
        assert!(matches!(s.begin_read_only(), Err(Error::State)));
        for i in 0..20u8 {
            put(&mut s, &[b'k', i], &[i]);
        }
        put(&mut s, b"a", b"2");
        put(&mut s, b"a", b"3");
        assert_eq!(data(&mut s, b"a").unwrap(), b"3", "{name}: own write");
        assert_eq!(data(&mut other, b"a").unwrap(), b"1", "{name}: not committed");
        s.rollback().unwrap();
        assert_eq!(data(&mut s, b"a").unwrap(), b"1");
        assert_eq!(data(&mut s, &[b'k', 3]), None);
        assert_eq!(db.len(), 1, "{name}");

        s.begin().unwrap();
        for i in 0..20u8 {
            put(&mut s, &[b'k', i], &[i]);
        }
        assert!(matches!(s.delete(b"a").unwrap(), Written::Done { .. }));
        assert_eq!(data(&mut s, b"a"), None);
        let ts = s.commit().unwrap();
        assert!(ts > 0 && !s.in_transaction());
        assert_eq!(db.clock(), ts.max(db.clock()));
        for i in 0..20u8 {
            assert_eq!(other.get(&[b'k', i]).unwrap().unwrap().commit_ts, ts, "{name}");
        }
        assert_eq!(data(&mut other, b"a"), None);
        assert_eq!(db.len(), 20, "{name}");
        s.begin().unwrap();
        assert_eq!(s.commit().unwrap(), 0, "{name}: nothing written");
        s.rollback().unwrap();
        assert!(matches!(s.commit(), Err(Error::State)));
    }
}

#[test]
fn conflicts_fail_the_transaction() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let (mut a, mut b) = (db.session().unwrap(), db.session().unwrap());
        put(&mut a, b"x", b"0");
        a.begin().unwrap();
        b.begin().unwrap();
        put(&mut a, b"x", b"1");
        assert!(matches!(b.get(b"x"), Err(Error::Conflict)), "{name}");
        assert!(matches!(b.get(b"y"), Err(Error::Aborted)), "{name}");
        assert!(matches!(b.commit(), Err(Error::Aborted)));
        assert!(!b.in_transaction());
        assert!(matches!(b.set(b"x", b"2", SetOptions::default()), Err(Error::Conflict)));
        a.commit().unwrap();
        put(&mut b, b"x", b"2");
        // Shared locks exclude writers, and only the sole reader may upgrade.
        a.begin().unwrap();
        b.begin().unwrap();
        assert_eq!(data(&mut a, b"x").unwrap(), b"2");
        assert_eq!(data(&mut b, b"x").unwrap(), b"2");
        assert!(matches!(a.set(b"x", b"3", SetOptions::default()), Err(Error::Conflict)), "{name}");
        a.rollback().unwrap();
        put(&mut b, b"x", b"4");
        b.commit().unwrap();
        assert_eq!(data(&mut a, b"x").unwrap(), b"4");
    }
}

#[test]
fn absence_is_locked() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let (mut a, mut b) = (db.session().unwrap(), db.session().unwrap());
        a.begin().unwrap();
        assert_eq!(data(&mut a, b"new"), None);
        assert!(matches!(b.set(b"new", b"1", SetOptions::default()), Err(Error::Conflict)), "{name}");
        a.commit().unwrap();
        put(&mut b, b"new", b"1");
    }
}

#[test]
fn read_only_sees_its_snapshot() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        if db.config().versions == 1 {
            continue;
        }
        let (mut reader, mut writer) = (db.session().unwrap(), db.session().unwrap());
        put(&mut writer, b"a", b"1");
        put(&mut writer, b"b", b"1");
        reader.begin_read_only().unwrap();
        for i in 0..50u8 {
            transaction(&mut writer, |writer| {
                [b"a", b"b", b"c"]
                    .iter()
                    .try_for_each(|key| writer.set(*key, &[i], SetOptions::default()).map(drop))
            });
            assert_eq!(data(&mut reader, b"a").unwrap(), b"1", "{name}");
        }
        transaction(&mut writer, |writer| writer.delete(b"b").map(drop));
        assert_eq!(data(&mut reader, b"b").unwrap(), b"1");
        assert_eq!(data(&mut reader, b"c"), None);
        assert!(matches!(reader.set(b"a", b"2", SetOptions::default()), Err(Error::State)));
        reader.commit().unwrap();
        assert_eq!(data(&mut reader, b"a").unwrap(), [49]);
        assert_eq!(data(&mut reader, b"b"), None);
    }
}

#[test]
fn expiry() {
    if !can_run() {
        return;
    }
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        let at = |ms| SetOptions { expire_at_ms: Some(ms), ..SetOptions::default() };
        // The span is long enough not to pass before the key has been read.
        let mut span = 150;
        let soon = loop {
            let soon = now() + span;
            s.set(b"k", b"v", at(soon)).unwrap();
            let first = s.get(b"k").unwrap();
            s.set(b"k", b"w", SetOptions { keep_ttl: true, ..SetOptions::default() }).unwrap();
            let second = s.get(b"k").unwrap();
            if now() < soon {
                assert_eq!(first.unwrap().expire_at_ms, Some(soon), "{name}");
                assert_eq!(second.unwrap().expire_at_ms, Some(soon), "{name}");
                break soon;
            }
            span *= 4;
        };
        s.set(b"past", b"v", at(now() - 1000)).unwrap();
        assert_eq!(data(&mut s, b"past"), None);
        while now() < soon + 20 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(data(&mut s, b"k"), None, "{name}");
        assert_eq!(s.delete(b"k").unwrap(), Written::ConditionFailed);
        put(&mut s, b"k", b"again");
        assert_eq!(s.get(b"k").unwrap().unwrap().expire_at_ms, None);
    }
}

#[test]
fn limits_of_a_transaction() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        s.begin().unwrap();
        for i in 0..TX_KEYS_MAX as u32 {
            put(&mut s, &i.to_le_bytes(), b"v");
        }
        put(&mut s, &0u32.to_le_bytes(), b"again");
        assert!(matches!(s.get(b"one too many"), Err(Error::TooManyLocks)), "{name}");
        s.rollback().unwrap();
        assert_eq!(db.len(), 0);
    }
}

#[test]
fn a_dropped_session_rolls_back() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut a = db.session().unwrap();
        a.begin().unwrap();
        put(&mut a, b"x", b"1");
        drop(a);
        let mut b = db.session().unwrap();
        put(&mut b, b"x", b"2");
        assert_eq!(data(&mut b, b"x").unwrap(), b"2", "{name}");
    }
}

#[test]
fn exhausted_memory_loses_nothing() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        let value = vec![7; 60_000];
        let mut stored = 0u32;
        let full = loop {
            match s.set(&stored.to_le_bytes(), &value, SetOptions::default()) {
                Ok(_) => stored += 1,
                Err(Error::WalFull) => break false,
                Err(Error::NoMemory) => break true,
                Err(e) => panic!("{name}: {e}"),
            }
        };
        // The records of the arena engine refer to large values; those of the hash-map engine have copies.
        let logged = db.config().wal_ring_bytes > 0;
        assert_eq!(full, !logged || db.config().engine == EngineKind::Arena, "{name}");
        assert_eq!(db.len(), u64::from(stored));
        for i in 0..stored {
            assert_eq!(data(&mut s, &i.to_le_bytes()).unwrap(), value, "{name}");
        }
        if full && !logged {
            // An update needs a block beside the old one; a delete makes room for it.
            assert!(stored > 500);
            s.delete(&0u32.to_le_bytes()).unwrap();
            put(&mut s, &1u32.to_le_bytes(), &value);
        }
    }
}
