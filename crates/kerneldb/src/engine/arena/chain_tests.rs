//! The limit on the length of a hash chain: at it, one past it, and a chain that is longer than it may be.

use crate::layout::kdb_entry;
use crate::limits::CHAIN_ENTRIES_MAX;
use crate::{Config, Database, Error, SetOptions, Written, hash};

/// A small database, and keys of one bucket; `None` where eBPF programs cannot be loaded.
fn database() -> Option<(Database, impl Iterator<Item = Vec<u8>>)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loading eBPF programs needs root");
        return None;
    }
    let config = Config { memory_bytes: 16 << 20, max_sessions: 4, ..Config::default() };
    let database = Database::create(config).unwrap();
    let secret = database.engine().control.secrets.hash_key;
    let mask = u64::from(database.engine().first_arena().geometry.nbuckets - 1);
    let in_first_bucket = move |key: &Vec<u8>| hash::hash(secret, key) & mask == 0;
    let keys = (0u64..).map(|i| i.to_le_bytes().to_vec()).filter(in_first_bucket);
    Some((database, keys))
}

#[test]
fn a_full_chain_refuses_another_key_and_serves_those_it_has() {
    let Some((database, mut others)) = database() else { return };
    let keys: Vec<_> = others.by_ref().take(CHAIN_ENTRIES_MAX).collect();
    let mut session = database.session().unwrap();
    for key in &keys {
        session.set(key, key, SetOptions::default()).unwrap();
    }
    for key in &keys {
        assert_eq!(session.get(key).unwrap().unwrap().data, *key);
    }
    let next = others.next().unwrap();
    assert!(session.get(&next).unwrap().is_none(), "absent, which is certain: the walk saw every entry");
    assert!(matches!(session.delete(&next), Ok(Written::ConditionFailed)));
    assert!(matches!(session.set(&next, b"v", SetOptions::default()), Err(Error::ChainFull)));
    // A transaction would have to lock the absence of the key.
    session.begin().unwrap();
    session.set(&keys[7], b"changed", SetOptions::default()).unwrap();
    assert!(matches!(session.get(&next), Err(Error::ChainFull)));
    assert!(session.is_failed());
    session.rollback().unwrap();
    session.begin().unwrap();
    session.set(&keys[7], b"changed", SetOptions::default()).unwrap();
    session.commit().unwrap();
    assert_eq!(database.verify().unwrap().longest_chain, CHAIN_ENTRIES_MAX as u64);
    // The collector's walk goes through the whole chain, and then there is room for one key.
    session.delete(&keys[0]).unwrap();
    assert_eq!(database.verify().unwrap().longest_chain, CHAIN_ENTRIES_MAX as u64 - 1);
    session.set(&next, b"v", SetOptions::default()).unwrap();
    assert_eq!(session.get(&next).unwrap().unwrap().data, b"v");
    assert_eq!(database.verify().unwrap().longest_chain, CHAIN_ENTRIES_MAX as u64);
}

/// A chain beyond the limit can only be damage. No key is reported as absent because of it.
#[test]
fn a_chain_beyond_the_limit_is_an_error() {
    let Some((database, mut others)) = database() else { return };
    let mut session = database.session().unwrap();
    let first = others.next().unwrap();
    session.set(&first, b"first", SetOptions::default()).unwrap();
    let keys: Vec<_> = others.by_ref().take(CHAIN_ENTRIES_MAX - 1).collect();
    for key in &keys {
        session.set(key, b"v", SetOptions::default()).unwrap();
    }
    // The first key's entry is the last of its chain: entries are added at the front.
    let geometry = database.engine().first_arena().geometry;
    let arena = &database.engine().first_arena().arena;
    let mut last: *mut kdb_entry = arena.at(geometry.buckets);
    let mut next = u64::from(arena.word(geometry.buckets).load(std::sync::atomic::Ordering::SeqCst) as u32);
    let head = next;
    while next != 0 {
        last = arena.at(next);
        // SAFETY: an entry of the chain, which no operator changes meanwhile.
        next = u64::from(unsafe { (*last).next });
    }
    // SAFETY: as above. The chain becomes a ring, in which every walk exceeds the limit.
    unsafe { (&raw mut (*last).next).write_volatile(head as u32) };
    assert_eq!(session.get(&first).unwrap().unwrap().data, b"first");
    let absent = others.next().unwrap();
    assert!(matches!(session.get(&absent), Err(Error::ChainFull)));
    assert!(matches!(session.delete(&absent), Err(Error::ChainFull)));
    assert!(matches!(session.set(&absent, b"v", SetOptions::default()), Err(Error::ChainFull)));
    // SAFETY: as above.
    unsafe { (&raw mut (*last).next).write_volatile(0) };
    assert!(session.get(&absent).unwrap().is_none());
    database.verify().unwrap();
}
