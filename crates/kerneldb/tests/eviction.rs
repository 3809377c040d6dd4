//! Eviction: keys are deleted when memory becomes short, in the order of the policy.

mod common;

use std::time::{Duration, Instant};

use bedplate_kerneldb::{Config, Database, EngineKind, Error, EvictionPolicy, Session, SetOptions};
use common::{can_run, has_arenas};

/// An hour from now, in milliseconds since the Unix epoch.
fn in_an_hour() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_millis() as u64 + 3_600_000
}

fn database(policy: EvictionPolicy) -> Option<Database> {
    if !can_run() || !has_arenas() {
        return None;
    }
    let db =
        Database::create(Config { memory_bytes: 16 << 20, max_sessions: 8, ..Config::default() }).unwrap();
    db.set_eviction(policy).unwrap();
    Some(db)
}

fn key(kind: &str, number: u64) -> Vec<u8> {
    format!("{kind}:{number:010}").into_bytes()
}

fn set(session: &mut Session, key: &[u8], bytes: usize, expire_at_ms: Option<u64>) -> Result<(), Error> {
    let value = vec![7; bytes];
    loop {
        match session.set(key, &value, SetOptions { expire_at_ms, ..SetOptions::default() }) {
            // A write that waits longer than the thread needs on an idle machine.
            Err(Error::MemoryInLog) => std::thread::yield_now(),
            done => return done.map(drop),
        }
    }
}

/// Number of the keys of a kind that exist.
fn count(session: &mut Session, kind: &str, keys: u64) -> u64 {
    (0..keys).filter(|number| session.get(&key(kind, *number)).unwrap().is_some()).count() as u64
}

/// Writes keys that fill the memory several times, over some seconds, and uses some other keys all the time. Returns how many of
/// those are left.
fn use_some_keys(db: &Database, hot: u64, rounds: u64) -> u64 {
    let mut session = db.session().unwrap();
    for number in 0..hot {
        set(&mut session, &key("hot", number), 100, None).unwrap();
    }
    for round in 0..rounds {
        for number in 0..4000 {
            set(&mut session, &key("cold", round * 4000 + number), 100, None).unwrap();
        }
        count(&mut session, "hot", hot);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(db.eviction_stats().evicted > 10_000, "{:?}", db.eviction_stats());
    count(&mut session, "hot", hot)
}

#[test]
fn keys_in_use_stay() {
    for policy in [EvictionPolicy::AllkeysLru, EvictionPolicy::AllkeysLfu] {
        let Some(db) = database(policy) else { return };
        let left = use_some_keys(&db, 5000, 60);
        assert!(left > 4900, "{policy:?}: {left} of 5000 keys in use are left");
        db.verify().unwrap();
    }
    let Some(db) = database(EvictionPolicy::AllkeysRandom) else { return };
    let left = use_some_keys(&db, 5000, 40);
    assert!((100..3500).contains(&left), "at random: {left} of 5000 are left");
    db.verify().unwrap();
}

#[test]
fn keys_without_expiry_stay() {
    use EvictionPolicy::*;
    for policy in [VolatileLru, VolatileLfu, VolatileRandom, VolatileTtl] {
        let Some(db) = database(policy) else { return };
        let mut session = db.session().unwrap();
        for number in 0..20_000 {
            set(&mut session, &key("kept", number), 100, None).unwrap();
        }
        for number in 0..200_000 {
            set(&mut session, &key("cache", number), 100, Some(in_an_hour())).unwrap();
        }
        assert_eq!(count(&mut session, "kept", 20_000), 20_000, "{policy:?}");
        // Only keys without an expiry are left in the end, so there is nothing to evict.
        let error = (0..200_000).find_map(|number| set(&mut session, &key("more", number), 100, None).err());
        assert!(matches!(error, Some(Error::NoMemory)), "{policy:?}: {error:?}");
        assert_eq!(count(&mut session, "kept", 20_000), 20_000, "{policy:?}");
        assert_eq!(count(&mut session, "cache", 200_000), 0, "{policy:?}");
        // Another policy has effect at once.
        db.set_eviction(AllkeysRandom).unwrap();
        set(&mut session, b"one more", 100, None).unwrap();
        drop(session);
        db.verify().unwrap();
    }
}

/// The memory of keys whose expiry has passed serves writers, also if nothing else deletes these keys.
#[test]
fn expired_keys_go() {
    for policy in [EvictionPolicy::VolatileTtl, EvictionPolicy::AllkeysRandom] {
        let Some(db) = database(policy) else { return };
        db.set_expire_effort(0).unwrap();
        let mut session = db.session().unwrap();
        let soon = in_an_hour() - 3_600_000 + 1500;
        for number in 0..60_000 {
            set(&mut session, &key("expired", number), 100, Some(soon)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1600));
        for number in 0..50_000 {
            set(&mut session, &key("k", number), 100, None).unwrap();
        }
        assert_eq!(count(&mut session, "expired", 60_000), 0);
        drop(session);
        db.verify().unwrap();
    }
}

/// Values of another size find memory although no slab of keys can be emptied: each has keys that stay.
#[test]
fn sizes_change_beside_keys_that_stay() {
    let Some(db) = database(EvictionPolicy::VolatileLru) else { return };
    let mut session = db.session().unwrap();
    for number in 0..60_000 {
        let expiry = (number % 4 != 0).then(in_an_hour);
        set(&mut session, &key("k", number), 100, expiry).unwrap();
    }
    for number in 0..30_000 {
        set(&mut session, &key("large", number), 1000, Some(in_an_hour())).unwrap();
    }
    let kept = (0..60_000).step_by(4).filter(|number| session.get(&key("k", *number)).unwrap().is_some());
    assert_eq!(kept.count(), 15_000);
    drop(session);
    db.verify().unwrap();
}

#[test]
fn keys_that_expire_first_go_first() {
    let Some(db) = database(EvictionPolicy::VolatileTtl) else { return };
    let mut session = db.session().unwrap();
    for number in 0..20_000 {
        set(&mut session, &key("soon", number), 100, Some(in_an_hour())).unwrap();
        set(&mut session, &key("late", number), 100, Some(in_an_hour() + 100 * 3_600_000)).unwrap();
    }
    for number in 0.. {
        if db.eviction_stats().evicted > 10_000 {
            break;
        }
        set(&mut session, &key("later", number), 100, Some(in_an_hour() + 1000 * 3_600_000)).unwrap();
    }
    assert_eq!(count(&mut session, "late", 20_000), 20_000);
    assert!(count(&mut session, "soon", 20_000) < 11_000);
}

/// Memory that small keys had serves values of other sizes, and the other way round.
#[test]
fn sizes_change() {
    let Some(db) = database(EvictionPolicy::AllkeysLru) else { return };
    let mut session = db.session().unwrap();
    for (kind, bytes) in [("a", 8), ("b", 1000), ("c", 100), ("d", 60_000), ("e", 30), ("f", 5000), ("g", 1)]
    {
        for number in 0..(64 << 20) / (bytes as u64 + 200) {
            if let Err(error) = set(&mut session, &key(kind, number), bytes, None) {
                panic!("{bytes} bytes, key {number}: {error}; {:?}", db.heap_stats());
            }
        }
    }
    drop(session);
    db.verify().unwrap();
}

/// While a snapshot keeps the memory of evicted keys, no more keys are evicted than are needed.
#[test]
fn a_snapshot_does_not_empty_the_cache() {
    let Some(db) = database(EvictionPolicy::AllkeysLru) else { return };
    let mut session = db.session().unwrap();
    for number in 0..150_000 {
        set(&mut session, &key("k", number), 100, None).unwrap();
    }
    let (before, snapshot) = (db.len(), db.snapshot().unwrap());
    let failed = (150_000..300_000).find(|number| set(&mut session, &key("k", *number), 100, None).is_err());
    assert!(failed.is_some(), "the snapshot keeps everything, so memory runs out");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        let _ = set(&mut session, &key("x", 1), 100, None);
    }
    assert!(db.len() > before / 2, "{} of {before} keys are left", db.len());
    drop(snapshot);
    for number in 300_000..400_000 {
        set(&mut session, &key("k", number), 100, None).unwrap();
    }
    drop(session);
    db.verify().unwrap();
}

#[test]
fn locked_keys_stay() {
    let Some(db) = database(EvictionPolicy::AllkeysRandom) else { return };
    let (mut holder, mut session) = (db.session().unwrap(), db.session().unwrap());
    for number in 0..50 {
        set(&mut holder, &key("locked", number), 100, None).unwrap();
    }
    holder.begin().unwrap();
    for number in 0..50 {
        let locked = key("locked", number);
        match number % 2 {
            0 => drop(holder.get(&locked).unwrap().unwrap()),
            _ => set(&mut holder, &locked, 200, None).unwrap(),
        }
    }
    for number in 0..400_000 {
        set(&mut session, &key("k", number), 100, None).unwrap();
    }
    holder.commit().unwrap();
    assert_eq!(count(&mut session, "locked", 50), 50);
}

/// Writers that write transactions find memory as others do.
#[test]
fn transactions_find_memory() {
    let Some(db) = database(EvictionPolicy::AllkeysLru) else { return };
    let mut session = db.session().unwrap();
    for round in 0..3000 {
        session.begin().unwrap();
        for number in 0..100 {
            set(&mut session, &key("k", round * 100 + number), 300, None).unwrap();
        }
        session.commit().unwrap();
    }
    drop(session);
    db.verify().unwrap();
}

#[test]
fn usage_of_a_key() {
    let Some(db) = database(EvictionPolicy::AllkeysLru) else { return };
    let mut session = db.session().unwrap();
    assert_eq!(session.key_usage(b"key").unwrap(), None);
    set(&mut session, b"key", 10, None).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    let idle = session.key_usage(b"key").unwrap().unwrap().idle.unwrap();
    assert!((1500..4000).contains(&idle.as_millis()), "{idle:?}");
    assert!(session.key_usage(b"key").unwrap().unwrap().idle.unwrap() >= idle, "asking is no use");
    session.peek(b"key").unwrap().unwrap();
    assert!(session.key_usage(b"key").unwrap().unwrap().idle.unwrap() >= idle, "peeking is no use");
    session.get(b"key").unwrap();
    assert!(session.key_usage(b"key").unwrap().unwrap().idle.unwrap() < Duration::from_millis(1000));

    db.set_eviction(EvictionPolicy::AllkeysLfu).unwrap();
    db.set_usage_factor(1, 0).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(session.key_usage(b"key").unwrap().unwrap().frequency, Some(5), "reset to that of a new key");
    for _ in 0..5000 {
        session.get(b"key").unwrap();
    }
    let frequency = session.key_usage(b"key").unwrap().unwrap().frequency.unwrap();
    assert!((60..160).contains(&frequency), "{frequency}: the square root of twice the accesses, roughly");

    db.set_eviction(EvictionPolicy::NoEviction).unwrap();
    assert_eq!(session.key_usage(b"key").unwrap(), Some(Default::default()));
    session.begin().unwrap();
    assert_eq!(session.key_usage(b"key").unwrap(), Some(Default::default()));
    assert!(db.set_usage_factor(1_000_000, 1).is_ok());
    assert!(matches!(db.set_usage_factor(1_000_001, 1), Err(Error::Config(_))));
}

#[test]
fn without_a_policy_writes_fail() {
    let Some(db) = database(EvictionPolicy::NoEviction) else { return };
    let mut session = db.session().unwrap();
    let error = (0..200_000).find_map(|number| set(&mut session, &key("k", number), 100, None).err());
    assert!(matches!(error, Some(Error::NoMemory)), "{error:?}");
    assert_eq!(db.eviction_stats().evicted, 0);
    db.set_eviction(EvictionPolicy::AllkeysLru).unwrap();
    set(&mut session, &key("k", 1_000_000), 100, None).unwrap();
}

#[test]
fn partitions_evict_their_own_keys() {
    if !can_run() || !has_arenas() {
        return;
    }
    let config = Config { memory_bytes: 32 << 20, partitions: 2, max_sessions: 8, ..Config::default() };
    let db = Database::create(config).unwrap();
    db.set_eviction(EvictionPolicy::AllkeysLru).unwrap();
    let mut session = db.session().unwrap();
    for number in 0..400_000 {
        set(&mut session, &key("k", number), 100, None).unwrap();
    }
    drop(session);
    db.verify().unwrap();
}

/// The engine on hash maps does not know the usage of keys. It evicts at random, or by expiry.
#[test]
fn on_hash_maps() {
    if !can_run() {
        return;
    }
    let config =
        Config { engine: EngineKind::HashMap, memory_bytes: 16 << 20, max_sessions: 8, ..Config::default() };
    let db = Database::create(config).unwrap();
    for policy in [EvictionPolicy::AllkeysLru, EvictionPolicy::VolatileLfu] {
        let error = db.set_eviction(policy).unwrap_err().to_string();
        assert!(error.contains(policy.name()), "{error}");
        assert_eq!(db.eviction(), EvictionPolicy::NoEviction);
    }
    db.set_eviction(EvictionPolicy::VolatileTtl).unwrap();
    let mut session = db.session().unwrap();
    for number in 0..1000 {
        set(&mut session, &key("kept", number), 100, None).unwrap();
    }
    for number in 0..60_000 {
        set(&mut session, &key("cache", number), 100, Some(in_an_hour())).unwrap();
    }
    assert_eq!(count(&mut session, "kept", 1000), 1000);
    db.set_eviction(EvictionPolicy::AllkeysRandom).unwrap();
    for number in 0..60_000 {
        set(&mut session, &key("more", number), 100, None).unwrap();
    }
    drop(session);
    db.verify().unwrap();
}
