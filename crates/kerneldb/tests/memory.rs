//! Use of the arenas' memory: bytes per key, and memory that moves between values of different sizes.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::{Config, Database, Error, HeapStats, Session, SetOptions};
use common::{can_run, has_arenas};

const KEY_BYTES: usize = 16;
const EXPIRES: u64 = 1 << 50;

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.into_iter().cycle().take(bytes).collect()
}

fn set(session: &mut Session, number: u64, bytes: usize, expires: bool) -> Result<(), Error> {
    let options = SetOptions { expire_at_ms: expires.then_some(EXPIRES), ..SetOptions::default() };
    session.set(&key(number), &value(number, bytes), options).map(drop)
}

/// Writes keys until the memory limit is reached; returns how many there are.
fn fill(db: &Database, bytes: usize, expires: bool) -> u64 {
    let mut session = db.session().unwrap();
    (0..)
        .find(|&number| match set(&mut session, number, bytes, expires) {
            Ok(()) => false,
            Err(Error::NoMemory) => true,
            Err(e) => panic!("{e}"),
        })
        .unwrap()
}

/// Checks and deletes all keys.
fn empty(db: &Database, keys: u64, bytes: usize) {
    let mut session = db.session().unwrap();
    for number in 0..keys {
        if number % 7 == 0 {
            assert_eq!(session.get(&key(number)).unwrap().unwrap().data, value(number, bytes));
        }
        session.delete(&key(number)).unwrap();
    }
}

/// Ends the other threads of a test, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn heap_bytes(stats: &HeapStats) -> u64 {
    stats.slab_bytes + stats.free_bytes + stats.unused_bytes
}

#[test]
fn memory_moves_between_all_sizes_of_values() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(common::small()).unwrap();
    let rounds = [
        (128, false),
        (1024, false),
        (64, false),
        (60 << 10, false),
        (16, false),
        (1000, true),
        (24, true),
        (64 << 10, true),
        (128, false),
    ];
    let mut first = 0;
    for (bytes, expires) in rounds {
        let keys = fill(&db, bytes, expires);
        let heap = db.heap_stats();
        let share = heap.allocated_bytes as f64 / heap_bytes(&heap) as f64;
        assert!(share >= 0.85, "only {share:.2} of the heap hold values of {bytes} bytes: {heap:?}");
        first = if first == 0 { keys } else { first };
        if bytes == 1024 {
            assert!(keys * 1024 * 100 >= first * 128 * 85);
        }
        empty(&db, keys, bytes);
        assert_eq!(db.len(), 0);
        db.verify().unwrap();
    }
    let again = fill(&db, 128, false);
    assert!(again * 100 >= first * 99, "{again} values of 128 bytes after all others, {first} before");
}

/// Slabs of deleted entries go back to the pool even while there are plenty of free ones.
#[test]
fn an_empty_database_takes_little_memory() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(Config { memory_bytes: 64 << 20, ..Config::default() }).unwrap();
    let mut session = db.session().unwrap();
    for number in 0..50_000 {
        set(&mut session, number, 16, false).unwrap();
    }
    let full = db.heap_stats().slab_bytes;
    assert!(full > 5 << 20, "{full}");
    for number in 0..50_000 {
        session.delete(&key(number)).unwrap();
    }
    drop(session);
    let started = Instant::now();
    while db.heap_stats().slab_bytes > 1 << 20 {
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", db.heap_stats());
        std::thread::sleep(Duration::from_millis(20));
    }
    db.verify().unwrap();
}

#[test]
fn a_key_takes_little_more_than_its_bytes() {
    if !can_run() || !has_arenas() {
        return;
    }
    for (value_bytes, most, ring) in [
        (16, 132, 0),
        (100, 200, 0),
        (1000, 1112, 0),
        (16, 132, 1 << 20),
        (100, 200, 1 << 20),
        (1000, 1112, 1 << 20),
    ] {
        let db = Database::create(Config { wal_ring_bytes: ring, ..common::small() }).unwrap();
        let mut session = db.session().unwrap();
        session.set_logged(false);
        let mut keys = 0;
        // No thread reads the log ring here, so with a ring the test writes only as much as it holds.
        let wanted = if ring == 0 { u64::MAX } else { 10_000 };
        while keys < wanted {
            match set(&mut session, keys, value_bytes, false) {
                Ok(()) => keys += 1,
                Err(Error::NoMemory) => break,
                Err(e) => panic!("{e}"),
            }
        }
        let heap = db.heap_stats();
        assert_eq!(db.stats().keys, keys);
        // The buckets of the index are sized for the memory limit, so a key has its share when the memory is full.
        let share = heap.bucket_bytes as f64 / heap_bytes(&heap) as f64;
        let per_key = heap.allocated_bytes as f64 / keys as f64 * (1.0 + share);
        println!("values of {value_bytes} bytes, log {ring}: {per_key:.1} bytes per key of {keys}");
        assert!(per_key <= f64::from(most), "{per_key:.1} bytes per key with {value_bytes} bytes");
        if ring == 0 {
            let all = (heap.slab_bytes + heap.bucket_bytes) as f64 / keys as f64;
            assert!(
                all <= f64::from(most),
                "{all:.1} bytes per key with {value_bytes} bytes, slabs included"
            );
        }
        db.verify().unwrap();
    }
}

#[test]
fn versions_that_only_snapshots_need_take_memory_only_then() {
    if !can_run() || !has_arenas() {
        return;
    }
    for versions in [1, 2, 3, 4, 8, 64] {
        let db = Database::create(Config { versions, ..common::small() }).unwrap();
        let mut session = db.session().unwrap();
        set(&mut session, 0, 100, false).unwrap();
        let before = db.heap_stats().allocated_bytes;
        if versions > 1 {
            let mut readers = Vec::new();
            let mut written = 1;
            for round in 1..u64::from(versions) {
                let mut reader = db.session().unwrap();
                reader.begin_read_only().unwrap();
                readers.push((round, reader));
                session.set(&key(0), &value(round + 1, 100), SetOptions::default()).unwrap();
                written = round + 1;
            }
            let full = session.set(&key(0), &value(99, 100), SetOptions::default());
            // No snapshot needs the newest version, so the write may drop it.
            assert!(full.is_ok() || matches!(full, Err(Error::NoVersion)), "{full:?}");
            for (round, reader) in &mut readers {
                let seen = reader.get(&key(0)).unwrap().unwrap().data;
                assert_eq!(seen, if *round == 1 { value(0, 100) } else { value(*round, 100) });
            }
            assert!(written >= u64::from(versions));
            if versions > 2 {
                assert!(db.heap_stats().allocated_bytes > before);
            }
            readers.iter_mut().for_each(|(_, reader)| reader.rollback().unwrap());
        }
        set(&mut session, 0, 100, false).unwrap();
        db.verify().unwrap();
        assert_eq!(db.heap_stats().allocated_bytes, before, "{versions} versions");
    }
}

/// Half of the keys' values are deleted at random, so that no slab becomes empty by itself. Values of other sizes find
/// room nevertheless, while snapshots, scans and readers see every value unharmed.
#[test]
fn values_move_together_under_readers_snapshots_and_writers() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(common::small()).unwrap();
    let keys = fill(&db, 1000, false);
    let mut snapshot_reader = db.session().unwrap();
    let mut session = db.session().unwrap();
    let kept = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0;
    for number in (0..keys).filter(|&number| !kept(number)) {
        session.delete(&key(number)).unwrap();
    }
    snapshot_reader.begin_read_only().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for reader in 0..2 {
            let (db, stop) = (&db, &stop);
            scope.spawn(move || {
                let mut session = db.session().unwrap();
                let mut number = reader;
                while !stop.load(Ordering::Relaxed) {
                    number = (number + 7) % keys;
                    let found = session.get(&key(number)).unwrap();
                    assert_eq!(found.map(|v| v.data), kept(number).then(|| value(number, 1000)));
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let snapshot = db.snapshot().unwrap();
                let mut found = 0;
                snapshot
                    .scan(0, snapshot.positions(), &mut |item| {
                        if item.value.len() == 1000 {
                            let number = u64::from_le_bytes(item.key[..8].try_into().unwrap());
                            assert_eq!(item.value, value(number, 1000));
                            found += 1;
                        }
                    })
                    .unwrap();
                assert_eq!(found, (0..keys).filter(|&number| kept(number)).count());
            }
        });
        // The values take more than half of the heap, in another size.
        let room = heap_bytes(&db.heap_stats()) * 55 / 100 / (5000 + 200);
        for number in 0..room {
            let wanted = set(&mut session, keys + number, 5000, false);
            if wanted.is_err() {
                // A running scan holds back slabs that it may still look at.
                while set(&mut session, keys + number, 5000, false).is_err() {
                    assert!(
                        db.heap_stats().evacuating_slabs > 0,
                        "{number} of {room}: {:?}",
                        db.heap_stats()
                    );
                    std::thread::yield_now();
                }
            }
        }
        for number in (0..keys).step_by(11) {
            let found = snapshot_reader.get(&key(number)).unwrap();
            assert_eq!(found.map(|v| v.data), kept(number).then(|| value(number, 1000)));
        }
    });
    snapshot_reader.rollback().unwrap();
    let heap = db.heap_stats();
    assert!(heap.evacuated_bytes > 1 << 20, "{heap:?}");
    db.verify().unwrap();
}

/// At 70 % of the memory, every key's value changes its size again and again. Memory never runs out, and fragmentation
/// is no higher at the end than before.
#[test]
fn changing_sizes_do_not_use_up_the_memory() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(Config { memory_bytes: 32 << 20, ..common::small() }).unwrap();
    let mut session = db.session().unwrap();
    let heap = heap_bytes(&db.heap_stats());
    let sizes = [40, 100, 200, 350, 700, 1300, 3000, 9000];
    let keys = heap * 70 / 100 / 1900;
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % below
    };
    let mut lengths = vec![0; keys as usize];
    let mut scattered = Vec::new();
    for round in 0..8 {
        // In each round most values have another size than in the previous one.
        let favourite = sizes[(round * 3) % sizes.len()];
        for _ in 0..2 * keys {
            let number = next(keys);
            let bytes = if next(3) > 0 { favourite } else { sizes[next(8) as usize] };
            let others = db.heap_stats();
            if bytes > lengths[number as usize] && others.allocated_bytes + 9400 > heap * 70 / 100 {
                session.delete(&key(number)).unwrap();
                lengths[number as usize] = 0;
                continue;
            }
            let result = set(&mut session, number, bytes, false);
            result.unwrap_or_else(|e| panic!("round {round}, {bytes} bytes: {e}; {:?}", db.heap_stats()));
            lengths[number as usize] = bytes;
        }
        let heap = db.heap_stats();
        scattered.push(heap.fragmentation_ratio());
        for (number, &bytes) in (0..).zip(&lengths) {
            let found = session.get(&key(number)).unwrap().map(|v| v.data);
            assert_eq!(found, (bytes > 0).then(|| value(number, bytes)));
        }
    }
    println!("{scattered:.2?}");
    db.verify().unwrap();
    // Free memory between the values can be used for others.
    let more = (keys..).find(|&number| set(&mut session, number, 100, false).is_err()).unwrap() - keys;
    let heap = db.heap_stats();
    let share = heap.allocated_bytes as f64 / heap_bytes(&heap) as f64;
    assert!(share >= 0.85, "only {share:.2} in use after {more} keys more: {heap:?}");
    db.verify().unwrap();
}

/// A transaction that finds no memory because the log's reader needs overwritten values goes on when the reader has
/// passed them. A transaction that needs more than there can be fails.
#[test]
fn a_transaction_waits_for_memory_that_the_log_holds() {
    const BYTES: usize = 8000;
    /// Keys whose memory is spare: less than a slab of values of this size.
    const SPARE: u64 = 5;
    if !can_run() || !has_arenas() {
        return;
    }
    let config =
        Config { memory_bytes: 64 << 20, max_sessions: 8, wal_ring_bytes: 4 << 20, ..Config::default() };
    let db = Database::create(config).unwrap();
    let mut log = db.log_reader().unwrap();
    let mut drain = || while log.drain(1 << 20, &mut |_| {}) > 0 {};
    let mut session = db.session().unwrap();
    let mut keys = 0;
    while set(&mut session, keys, BYTES, false).is_ok() {
        keys += 1;
        drain();
    }
    for number in 0..SPARE {
        session.delete(&key(number)).unwrap();
    }
    drain();

    // The reader may not have read the previous write.
    let overwrite = |session: &mut Session| set(session, SPARE, BYTES, false);
    session.begin().unwrap();
    let refused = loop {
        match overwrite(&mut session) {
            Ok(()) => {
                session.commit().unwrap();
                session.begin().unwrap();
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::MemoryInLog) && !session.is_failed(), "{refused}");
    for _ in 0..20 {
        let refused = overwrite(&mut session);
        assert!(matches!(refused, Err(Error::MemoryInLog)) && !session.is_failed(), "{refused:?}");
    }
    drain();
    let started = Instant::now();
    while let Err(refused) = overwrite(&mut session) {
        assert!(matches!(refused, Error::MemoryInLog), "{refused}");
        assert!(started.elapsed() < Duration::from_secs(60), "no memory comes back");
        drain();
    }
    session.commit().unwrap();

    session.begin().unwrap();
    let refused = loop {
        match set(&mut session, keys, 60_000, false) {
            Err(Error::MemoryInLog) => drain(),
            Err(refused) => break refused,
            Ok(()) => panic!("there is no memory for it"),
        }
    };
    assert!(matches!(refused, Error::NoMemory) && session.is_failed(), "{refused}");
    session.rollback().unwrap();
    drop((session, log));
    db.verify().unwrap();
}
