//! Where the arenas' memory goes: bytes per key, and memory that moves between values of different sizes.

mod common;

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
        // The log ring is not read here: only as much as it holds is written with one.
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
        // The buckets of the index are sized for the memory limit: a key has its share when the memory is full.
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
            // The newest version is nobody's but the writers': it goes.
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
