//! The limits of a database: at each of them everything works, and one past it is the documented error.
//!
//! `operators.rs` has the limits of keys, values and transactions, `durability/` those of the log.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use bedplate_kerneldb::limits::{
    HASH_MAP_KEY_BYTES, HASH_MAP_VERSIONS_MAX, LOG_RING_BYTES_MAX, LOG_RING_BYTES_MIN, PARTITION_BYTES_MAX,
    PARTITION_BYTES_MIN, PARTITIONS_MAX, PROCEDURE_ARGUMENTS_MAX, SESSIONS_MAX, SNAPSHOTS_MAX, TRACE_OPS,
    VERSIONS_MAX,
};
use bedplate_kerneldb::{Config, Database, Error, SetOptions, VOTER};
use common::{can_run, has_arenas, hash_maps, small, variants};

#[test]
fn one_session_more_than_configured() {
    if !can_run() {
        return;
    }
    for config in
        [small(), hash_maps()].into_iter().filter(|c| c.engine == hash_maps().engine || has_arenas())
    {
        let db = Database::create(Config { max_sessions: 3, ..config }).unwrap();
        let mut sessions: Vec<_> = (0..3).map(|_| db.session().unwrap()).collect();
        for (i, session) in (0u32..).zip(&mut sessions) {
            session.set(&i.to_le_bytes(), b"v", SetOptions::default()).unwrap();
        }
        assert!(matches!(db.session(), Err(Error::NoSession(3))));
        sessions.pop();
        db.session().unwrap().get(&[0; 4]).unwrap().unwrap();
    }
}

#[test]
fn one_snapshot_more_than_there_are_slots() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut session = db.session().unwrap();
        session.set(b"k", b"v", SetOptions::default()).unwrap();
        let mut snapshots: Vec<_> = (0..SNAPSHOTS_MAX).map(|_| db.snapshot().unwrap()).collect();
        assert!(matches!(db.snapshot(), Err(Error::Busy)), "{name}");
        if db.config().versions > 1 {
            assert!(matches!(session.begin_read_only(), Err(Error::Busy)), "{name}");
        }
        let mut keys = 0;
        let last = snapshots.pop().unwrap();
        last.scan(0, last.positions(), &mut |_| keys += 1).unwrap();
        assert_eq!(keys, 1, "{name}");
        drop(last);
        session.begin_read_only().unwrap();
        assert_eq!(session.get(b"k").unwrap().unwrap().data, b"v", "{name}");
        session.commit().unwrap();
        drop(snapshots);
        assert_eq!(db.stats().active_snapshots, 0, "{name}");
    }
}

#[test]
fn configurations_one_past_a_limit() {
    let refused = |config: Config| {
        assert!(matches!(Database::create(config.clone()), Err(Error::Config(_))), "{config:?}");
    };
    refused(Config { partitions: 0, ..small() });
    refused(Config { partitions: PARTITIONS_MAX + 1, ..small() });
    refused(Config { memory_bytes: PARTITION_BYTES_MAX + 1, ..small() });
    refused(Config { memory_bytes: PARTITION_BYTES_MIN - 1, ..small() });
    refused(Config { memory_bytes: 2 * PARTITION_BYTES_MIN - 1, partitions: 2, ..small() });
    refused(Config { memory_bytes: 2 * PARTITION_BYTES_MAX + 1, partitions: 2, ..small() });
    refused(Config { max_sessions: 0, ..small() });
    refused(Config { max_sessions: SESSIONS_MAX + 1, ..small() });
    refused(Config { versions: 0, ..small() });
    refused(Config { versions: VERSIONS_MAX + 1, ..small() });
    refused(Config { wal_ring_bytes: LOG_RING_BYTES_MIN / 2, ..small() });
    refused(Config { wal_ring_bytes: LOG_RING_BYTES_MIN + 1, ..small() });
    refused(Config { wal_ring_bytes: 2 * LOG_RING_BYTES_MAX, ..small() });
    refused(Config { partitions: 2, ..hash_maps() });
    refused(Config { versions: HASH_MAP_VERSIONS_MAX + 1, ..hash_maps() });
    refused(Config { key_bytes: HASH_MAP_KEY_BYTES.start() - 1, ..hash_maps() });
    refused(Config { key_bytes: HASH_MAP_KEY_BYTES.end() + 1, ..hash_maps() });
}

#[test]
fn configurations_at_a_limit() {
    if !can_run() {
        return;
    }
    let works = |config: Config| {
        let db = Database::create(config.clone()).unwrap_or_else(|e| panic!("{config:?}: {e}"));
        let mut session = db.session().unwrap();
        for i in 0..100u32 {
            session.set(&i.to_le_bytes(), b"value", SetOptions::default()).unwrap();
            assert_eq!(session.get(&i.to_le_bytes()).unwrap().unwrap().data, b"value");
        }
    };
    if has_arenas() {
        works(Config { partitions: PARTITIONS_MAX, memory_bytes: 256 << 20, ..small() });
        works(Config { memory_bytes: PARTITION_BYTES_MIN, ..small() });
        works(Config { versions: VERSIONS_MAX, ..small() });
        works(Config { max_sessions: SESSIONS_MAX, ..small() });
        works(Config { wal_ring_bytes: LOG_RING_BYTES_MIN, ..small() });
    }
    works(Config { versions: HASH_MAP_VERSIONS_MAX, ..hash_maps() });
    works(Config { key_bytes: *HASH_MAP_KEY_BYTES.start(), ..hash_maps() });
    works(Config { key_bytes: *HASH_MAP_KEY_BYTES.end(), ..hash_maps() });
}

#[test]
fn one_operation_more_than_a_trace_holds() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(small()).unwrap();
    let mut session = db.session().unwrap();
    let mut trace = db.trace().unwrap();
    (0..TRACE_OPS).for_each(|_| trace.set(b"0123456789abcdef", 1));
    assert_eq!(trace.run(&mut session, b"v").unwrap().errors, 0);
    let one_more = catch_unwind(AssertUnwindSafe(|| trace.get(b"0123456789abcdef")));
    assert!(one_more.is_err());
}

#[test]
fn one_argument_more_than_a_procedure_has() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(small()).unwrap();
    let application = db.load_application(VOTER, 0).unwrap();
    let procedure = application.procedure("voter_direct").unwrap();
    let mut session = db.session().unwrap();
    procedure.run(&mut session, &[0; PROCEDURE_ARGUMENTS_MAX]).unwrap();
    let refused = procedure.run(&mut session, &[0; PROCEDURE_ARGUMENTS_MAX + 1]);
    assert!(matches!(refused, Err(Error::Config(_))));
}
