//! Features that only the hash-map engine has: reading its maps by system calls, key sizes of the load, the ring
//! buffer's notification. The operators themselves are tested together with the other engine's.

mod common;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use bedplate_kerneldb::{Config, Database, DumpMethod, Error, SetOptions, TRACE_OPS, VOTER, VOTER_HASHMAP};
use common::{can_run, has_arenas, hash_maps, small};

fn key(i: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&i.to_be_bytes());
    key[8..].copy_from_slice(&(i * 7).to_be_bytes());
    key
}

fn scanned(db: &Database) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let snapshot = db.snapshot().unwrap();
    let mut all = BTreeMap::new();
    snapshot
        .scan(0, snapshot.positions(), &mut |item| {
            assert!(item.commit_ts <= snapshot.timestamp());
            assert!(all.insert(item.key.to_vec(), item.value.to_vec()).is_none(), "a key was seen twice");
        })
        .unwrap();
    all
}

#[test]
fn maps_are_read_completely() {
    if !can_run() {
        return;
    }
    let db = Database::create(Config { key_bytes: 16, ..hash_maps() }).unwrap();
    let mut session = db.session().unwrap();
    let mut expected = BTreeMap::new();
    for i in 0..3000u64 {
        let value = vec![i as u8; (i * 13 % 5000) as usize];
        session.set(&key(i), &value, SetOptions::default()).unwrap();
        expected.insert(key(i).to_vec(), value);
    }
    for i in (0..3000).step_by(3) {
        session.delete(&key(i)).unwrap();
        expected.remove(&key(i)[..]);
    }
    assert_eq!(scanned(&db), expected);
    let verified = db.verify().unwrap();
    assert_eq!((verified.keys, verified.entries), (2000, 2000), "deleted keys were collected");
    for method in [DumpMethod::EntryByEntry, DumpMethod::Batched] {
        let (mut entries, mut bytes) = (0, 0);
        let elements = db
            .dump_hash_maps(method, &mut |k, v| {
                entries += u64::from(k.len() == 16);
                bytes += v.len();
            })
            .unwrap();
        // An index entry and a value for each key.
        assert_eq!((elements, entries), (4000, 2000), "{method:?}");
        assert!(bytes > expected.values().map(Vec::len).sum());
    }
}

/// Passes with steps of any size hand over every key once, in a table with few keys and in one with many.
#[test]
fn a_pass_over_the_positions_has_every_key_once() {
    if !can_run() {
        return;
    }
    for keys in [0, 3, 20_000] {
        let db = Database::create(hash_maps()).unwrap();
        let mut session = db.session().unwrap();
        for i in 0..keys {
            session.set(&key(i), &i.to_be_bytes(), SetOptions::default()).unwrap();
        }
        let expected: Vec<_> = scanned(&db).into_keys().collect();
        assert_eq!(expected.len() as u64, keys);
        for step in [1, 7, 4096, u64::MAX] {
            let snapshot = db.snapshot().unwrap();
            let (mut seen, mut at, mut calls) = (Vec::new(), 0, 0);
            while at < snapshot.positions() {
                let to = at.saturating_add(step).min(snapshot.positions());
                let next = snapshot.scan(at, to, &mut |item| seen.push(item.key.to_vec())).unwrap();
                assert!(next >= to);
                (at, calls) = (next, calls + 1);
            }
            seen.sort();
            assert_eq!(seen, expected, "{keys} keys in steps of {step}");
            // Empty buckets cost no calls.
            assert!(calls <= 1 + keys / 16 || step > 7, "{calls} calls for {keys} keys");
        }
    }
}

#[test]
fn what_is_for_the_other_engine_is_refused() {
    if !can_run() || !has_arenas() {
        return;
    }
    let arena = Database::create(small()).unwrap();
    assert!(matches!(arena.dump_hash_maps(DumpMethod::Batched, &mut |_, _| {}), Err(Error::State)));
    let maps = Database::create(hash_maps()).unwrap();
    assert!(matches!(maps.load_application(VOTER, 0), Err(Error::Config(_))), "it is for arenas");
    let library = maps.load_library("voter", VOTER, false).unwrap_err().to_string();
    assert!(library.contains("the object is for the arena engine"), "{library}");
    assert!(matches!(arena.load_application(VOTER_HASHMAP, 0), Err(Error::Config(_))), "it is for hash maps");
}

#[test]
fn snapshots_are_consistent_while_others_write() {
    if !can_run() {
        return;
    }
    let db = Database::create(Config { versions: 8, ..hash_maps() }).unwrap();
    let mut session = db.session().unwrap();
    let keys = 64u64;
    for i in 0..keys {
        session.set(&key(i), &0u64.to_le_bytes(), SetOptions::default()).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut writer = db.session().unwrap();
            let (mut round, mut committed) = (0u64, 0);
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                writer.begin().unwrap();
                let done = (0..keys).try_for_each(|i| {
                    writer.set(&key(i), &round.to_le_bytes(), SetOptions::default()).map(drop)
                });
                match done {
                    Ok(()) => committed += u64::from(writer.commit().is_ok()),
                    // Snapshots may need all versions. The collector may hold the entry; if its thread is preempted
                    // then, the operation is a conflict, or busy.
                    Err(Error::NoVersion | Error::Conflict | Error::Busy) => writer.rollback().unwrap(),
                    Err(e) => panic!("{e}"),
                }
            }
            committed
        });
        let until = Instant::now() + Duration::from_secs(2);
        let mut looked = 0;
        while looked < 20 || Instant::now() < until {
            let all = scanned(&db);
            assert_eq!(all.len() as u64, keys);
            let first = all.values().next().unwrap();
            assert!(all.values().all(|v| v == first), "a torn transaction");
            looked += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
    db.verify().unwrap();
}

#[test]
fn key_sizes_of_the_load() {
    if !can_run() {
        return;
    }
    let db = Database::create(Config { key_bytes: 20, ..hash_maps() }).unwrap();
    let mut session = db.session().unwrap();
    // The keys differ only in their length, or only behind the first words.
    let keys: Vec<Vec<u8>> = (1..=24).map(|n| vec![0; n]).chain([vec![1; 24], vec![1; 23]]).collect();
    for (i, key) in keys.iter().enumerate() {
        session.set(key, &[i as u8], SetOptions::default()).unwrap();
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(session.get(key).unwrap().unwrap().data, [i as u8]);
    }
    assert!(matches!(session.get(&[0; 25]), Err(Error::TooLarge(_))), "20 is rounded up to 24");
    session.begin().unwrap();
    for key in &keys {
        session.delete(key).unwrap();
    }
    session.commit().unwrap();
    assert_eq!(db.len(), 0);
    assert_eq!(db.verify().unwrap().entries, 0);
}

#[test]
fn the_log_wakes_its_reader() {
    if !can_run() {
        return;
    }
    let config = Config { wal_ring_bytes: 1 << 20, wal_notify_bytes: 32 << 10, ..hash_maps() };
    let db = Database::create(config).unwrap();
    let mut reader = db.log_reader().unwrap();
    assert!(!reader.wait(Duration::from_millis(1)), "nothing was logged");
    let mut session = db.session().unwrap();
    let mut trace = db.trace().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let start = Instant::now();
            assert!(reader.wait(Duration::from_secs(20)));
            start.elapsed()
        });
        std::thread::sleep(Duration::from_millis(50));
        (0..TRACE_OPS as u64).for_each(|i| trace.set(&key(i), 100));
        assert_eq!(trace.run(&mut session, &[9; 100]).unwrap().errors, 0);
        assert!(waiter.join().unwrap() < Duration::from_secs(10));
    });
    let mut next = 1;
    while next <= TRACE_OPS as u64 {
        assert!(
            reader.drain(usize::MAX, &mut |txn| {
                assert_eq!((txn.commit_ts, txn.ops.len()), (next, 1));
                next += 1;
            }) > 0
        );
    }
}
