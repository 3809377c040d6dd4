//! Locks that another operator or the collector holds for a moment. The moment may be long, because the host may stop
//! the holder's processor. A transaction that meets such a lock stays open.

use std::sync::atomic::Ordering;

use crate::layout::KDB_LOCK_AUTO;
use crate::{Config, Database, Error, Result, Session, SetOptions};

/// The lock of the only entry of a small database.
fn with_lock(database: &Database, change: impl FnOnce(&std::sync::atomic::AtomicU64)) {
    let partition = database.engine().first_arena();
    let geometry = partition.geometry;
    let mut heads = (0..u64::from(geometry.nbuckets))
        .map(|bucket| partition.arena.word(geometry.buckets + bucket * 8).load(Ordering::SeqCst) as u32)
        .filter(|head| *head != 0);
    let entry = heads.next().expect("the entry");
    assert!(heads.next().is_none(), "there is one entry only");
    // The lock is an entry's first word.
    change(partition.arena.word(u64::from(entry)));
}

fn is_busy<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::Busy)), "{result:?}");
}

#[test]
fn a_lock_that_is_held_for_a_moment_fails_no_transaction() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loading eBPF programs needs root");
        return;
    }
    for versions in [4, 1] {
        let config = Config { memory_bytes: 16 << 20, max_sessions: 4, versions, ..Config::default() };
        let database = Database::create(config).unwrap();
        let mut session = database.session().unwrap();
        let set = |session: &mut Session, value: &[u8]| session.set(b"key", value, SetOptions::default());
        set(&mut session, b"old").unwrap();

        session.begin().unwrap();
        with_lock(&database, |lock| assert_eq!(lock.swap(u64::from(KDB_LOCK_AUTO), Ordering::SeqCst), 0));
        is_busy(session.get(b"key"));
        is_busy(set(&mut session, b"new"));
        is_busy(session.delete(b"key"));
        is_busy(session.compare_and_set(b"key", b"old", b"new"));
        assert!(session.in_transaction() && !session.is_failed());
        let mut other = database.session().unwrap();
        is_busy(set(&mut other, b"other"));
        with_lock(&database, |lock| lock.store(0, Ordering::SeqCst));

        set(&mut session, b"new").unwrap();
        // This lock stays until the transaction ends, so an operator that meets it has a conflict.
        assert!(matches!(set(&mut other, b"other"), Err(Error::Conflict)));
        other.begin().unwrap();
        assert!(matches!(set(&mut other, b"other"), Err(Error::Conflict)));
        assert!(other.is_failed());
        other.rollback().unwrap();
        session.commit().unwrap();
        assert_eq!(other.get(b"key").unwrap().unwrap().data, b"new");
        database.verify().unwrap();
    }
}
