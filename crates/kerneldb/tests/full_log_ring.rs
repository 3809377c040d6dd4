//! A full log ring stops a transaction only until the log's reader has made room. Refused calls have had no effect, the
//! transaction stays open, and the same call succeeds later.

mod common;

use std::collections::BTreeMap;

use bedplate_kerneldb::{
    Config, Database, EngineKind, Error, LogReader, Op, Result, Session, SetOptions, Written,
    limits::LOG_RING_BYTES_MIN,
};
use common::{can_run, has_arenas, hash_maps, small};

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

/// Databases with the smallest log rings.
fn databases() -> Vec<(&'static str, Database)> {
    [
        ("arena", small()),
        ("arena, single version", Config { versions: 1, ..small() }),
        ("hash maps", hash_maps()),
    ]
    .into_iter()
    .filter(|(_, config)| config.engine == EngineKind::HashMap || has_arenas())
    .map(|(name, config)| {
        let config = Config { wal_ring_bytes: LOG_RING_BYTES_MIN, ..config };
        (name, Database::create(config).unwrap_or_else(|e| panic!("{name}: {e}")))
    })
    .collect()
}

/// Keeps the thread on one CPU: each CPU has a ring of its own.
fn stay_on_this_cpu() {
    // SAFETY: the set is a local variable of the size given; zeros are an empty set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn put(session: &mut Session, key: &[u8], value: &[u8]) -> Result<()> {
    let written = session.set(key, value, SetOptions::default())?;
    assert!(matches!(written, Written::Done { .. }));
    Ok(())
}

fn data(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    session.get(key).unwrap().map(|value| value.data)
}

/// Repeats a write until the ring of its partition has no room for another one; returns the number of writes.
fn fill(mut write: impl FnMut(u32) -> Result<()>) -> u32 {
    for i in 0..100_000 {
        match write(i) {
            Ok(()) => {}
            Err(Error::WalFull) => return i,
            Err(e) => panic!("write {i}: {e}"),
        }
    }
    panic!("the ring is never full");
}

/// Fills the ring by commits whose writes are not logged, until it has no room for the record of a commit either.
fn fill_with_commits(db: &Database) {
    let mut session = db.session().unwrap();
    session.set_logged(false);
    fill(|_| {
        if !session.in_transaction() {
            session.begin()?;
            put(&mut session, b"not logged", b"value")?;
        }
        session.commit().map(drop)
    });
}

/// Empties the rings, and applies the transactions to `keys`.
fn drain(log: &mut LogReader<'_>, keys: &mut Keys) {
    let mut apply = |op| match op {
        Op::Put { key, value, .. } => drop(keys.insert(key, value)),
        Op::Delete { key } => drop(keys.remove(&key)),
    };
    while log.drain(1 << 20, &mut |txn| txn.ops.into_iter().for_each(&mut apply)) > 0 {}
}

/// Every kind of write, and COMMIT, is refused while the ring is full, and succeeds once the log's reader has made room.
#[test]
fn a_transaction_goes_on_when_the_log_ring_has_room_again() {
    if !can_run() {
        return;
    }
    stay_on_this_cpu();
    for (name, db) in databases() {
        let mut log = db.log_reader().unwrap();
        let mut logged = Keys::new();
        let mut session = db.session().unwrap();
        put(&mut session, b"deleted", b"old").unwrap();
        put(&mut session, b"exchanged", b"old").unwrap();
        session.begin().unwrap();
        let open = |session: &Session, when: &str| {
            assert!(session.in_transaction() && !session.is_failed(), "{name}: after {when}");
        };

        // Long records come first, then short ones into the remaining space.
        let large = fill(|i| put(&mut session, b"rewritten", &[i as u8; 30_000]));
        assert!(large > 4, "{name}: only {large} writes");
        open(&session, "a refused SET");
        assert_eq!(data(&mut session, b"rewritten").unwrap(), [(large - 1) as u8; 30_000], "{name}");
        let small = fill(|i| put(&mut session, b"rewritten", &i.to_le_bytes()));
        open(&session, "a refused SET of a short value");
        if small > 0 {
            assert_eq!(data(&mut session, b"rewritten").unwrap(), (small - 1).to_le_bytes(), "{name}");
        }
        drain(&mut log, &mut logged);
        assert_eq!(logged.len(), 2, "{name}: nothing of the open transaction");
        put(&mut session, b"rewritten", b"last").unwrap_or_else(|e| panic!("{name}: {e}"));

        fill_with_commits(&db);
        for attempt in 0..3 {
            let refused = session.delete(b"deleted");
            assert!(matches!(refused, Err(Error::WalFull)), "{name}, attempt {attempt}: {refused:?}");
            open(&session, "a refused DELETE");
            assert_eq!(data(&mut session, b"deleted").unwrap(), b"old", "{name}");
            let refused = session.compare_and_set(b"exchanged", b"old", b"new");
            assert!(matches!(refused, Err(Error::WalFull)), "{name}, attempt {attempt}: {refused:?}");
            open(&session, "a refused compare-and-set");
            assert_eq!(data(&mut session, b"exchanged").unwrap(), b"old", "{name}");
            let refused = put(&mut session, b"new", b"value");
            assert!(matches!(refused, Err(Error::WalFull)), "{name}, attempt {attempt}: {refused:?}");
            open(&session, "a refused SET of a new key");
            assert_eq!(data(&mut session, b"new"), None, "{name}");
        }
        drain(&mut log, &mut logged);
        assert!(matches!(session.delete(b"deleted").unwrap(), Written::Done { .. }), "{name}");
        let exchanged = session.compare_and_set(b"exchanged", b"old", b"new").unwrap();
        assert!(matches!(exchanged, Written::Done { .. }), "{name}");
        put(&mut session, b"new", b"value").unwrap();

        fill_with_commits(&db);
        for attempt in 0..3 {
            let refused = session.commit();
            assert!(matches!(refused, Err(Error::WalFull)), "{name}, attempt {attempt}: {refused:?}");
            open(&session, "a refused COMMIT");
        }
        let mut reader = db.session().unwrap();
        assert_eq!(data(&mut reader, b"new"), None, "{name}: what is not committed is visible");
        drain(&mut log, &mut logged);
        assert!(session.commit().unwrap() > 0, "{name}");
        assert!(!session.in_transaction(), "{name}");

        drain(&mut log, &mut logged);
        let expected: [(&[u8], &[u8]); 3] =
            [(b"exchanged", b"new"), (b"new", b"value"), (b"rewritten", b"last")];
        let expected: Keys = expected.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(logged, expected, "{name}: the log");
        for (key, value) in &expected {
            assert_eq!(data(&mut reader, key).as_ref(), Some(value), "{name}");
        }
        assert_eq!(data(&mut reader, b"deleted"), None, "{name}");
        assert!(db.stats().wal_full >= 14, "{name}: {:?}", db.stats());
        drop((session, reader, log));
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
