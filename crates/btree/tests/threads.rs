//! Threads that insert, change, remove and scan at the same time, and the invariants that each of them checks.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_btree::Tree;
use bedplate_bufpool::{Choice, Kind, Pool};

const WRITERS: u64 = 4;
/// Number of keys that exist from the beginning to the end.
const STABLE: u64 = 3000;
const COUNTERS: u64 = 20;

fn seconds() -> Duration {
    let seconds = std::env::var("BEDPLATE_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    Duration::from_secs(seconds)
}

/// Keys of all kinds are interleaved, so that every leaf has some of each kind.
fn key(kind: u8, number: u64) -> Vec<u8> {
    let mut key = (common::mixed(number) % 5000).to_be_bytes().to_vec();
    key.push(kind);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn counter(number: u64) -> Vec<u8> {
    [b"counter-", &number.to_be_bytes()[..]].concat()
}

/// The value of a key. A value of another key, or a part of a value, would be detected.
fn value(key: &[u8], version: u64) -> Vec<u8> {
    let word = key.iter().fold(version, |sum, &byte| common::mixed(sum ^ u64::from(byte)));
    let len = match word % 40 {
        0 => 3000 + word % 9000,
        _ => word % 200,
    };
    let mut value = [version.to_le_bytes(), word.to_le_bytes()].concat();
    value.resize(16 + len as usize, word as u8);
    value
}

fn check_value(key: &[u8], found: &[u8]) -> u64 {
    let version = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert_eq!(found, value(key, version), "the value of another key, or parts of two");
    version
}

/// Changes its own keys at random, and checks their values.
fn write(tree: &Tree<&Pool>, me: u64, stop: &AtomicBool, increments: &AtomicU64) -> BTreeMap<Vec<u8>, u64> {
    let mut mine = BTreeMap::new();
    let mut random = me;
    for version in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        random = common::mixed(random);
        // The tree grows for a while and shrinks for a while.
        let growing = version % 8000 < 4000;
        let key = key(10 + me as u8, random % 1500);
        match random >> 32 & 15 {
            0..=8 if growing => {
                let was_there = tree.upsert(&key, &value(&key, version)).unwrap();
                assert_eq!(was_there, mine.insert(key, version).is_some());
            }
            0..=8 => assert_eq!(tree.remove(&key).unwrap(), mine.remove(&key).is_some()),
            9 => {
                let new = tree.insert(&key, &value(&key, version)).unwrap();
                assert_eq!(new, !mine.contains_key(&key));
                mine.entry(key).or_insert(version);
            }
            10 => {
                let found = tree.update(&key, |old, new| {
                    check_value(&key, old);
                    new.extend(value(&key, version));
                });
                assert_eq!(found.unwrap(), mine.contains_key(&key));
                mine.entry(key).and_modify(|known| *known = version);
            }
            11..=12 => {
                let number = random % COUNTERS;
                let add = |value: &mut [u8]| {
                    let sum = u64::from_le_bytes(value[..8].try_into().unwrap()) + 1;
                    value[..8].copy_from_slice(&sum.to_le_bytes());
                };
                tree.update_in_place(&counter(number), add).unwrap().expect("the counter is there");
                increments.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                let found = tree.get(&key, |found| check_value(&key, found)).unwrap();
                assert_eq!(found, mine.get(&key).copied());
            }
        }
    }
    mine
}

/// Scans between random keys, and checks that keys are in order and that stable keys occur exactly once.
fn scan(tree: &Tree<&Pool>, stop: &AtomicBool, stable: &BTreeMap<Vec<u8>, u64>) -> u64 {
    let (mut scans, mut random) = (0, 77);
    while !stop.load(Ordering::Relaxed) {
        random = common::mixed(random);
        let mut ends = [random % 5000, common::mixed(random) % 5000].map(u64::to_be_bytes);
        ends.sort();
        let [low, high] = ends;
        let up = random >> 60 & 1 == 0;
        let mut range = if up { tree.range(low..high) } else { tree.range_rev(low..high) };
        let mut expected = stable.range(low.to_vec()..high.to_vec());
        let mut last: Option<Vec<u8>> = None;
        while let Some((key, found)) = range.try_next().unwrap() {
            check_value(key, found);
            if let Some(last) = &last {
                assert!(if up { &last[..] < key } else { &last[..] > key }, "not in order");
            }
            if key[8] == 0 {
                let next = if up { expected.next() } else { expected.next_back() };
                assert_eq!(key, next.expect("a stable key too many").0);
            }
            last = Some(key.to_vec());
        }
        assert_eq!(expected.next(), None, "a stable key was not seen");
        scans += 1;
    }
    scans
}

/// Reads stable keys, and checks that each is present with a complete value.
fn read(tree: &Tree<&Pool>, stop: &AtomicBool) -> u64 {
    let (mut reads, mut random) = (0, 99);
    while !stop.load(Ordering::Relaxed) {
        random = common::mixed(random);
        let key = key(0, random % STABLE);
        assert_eq!(tree.get(&key, |found| check_value(&key, found)).unwrap(), Some(0));
        reads += 1;
    }
    reads
}

/// Stops the other threads, even if the test panics.
struct Abort<'s>(&'s AtomicBool);

impl Drop for Abort<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn everything_at_once(pages: usize, engine: Choice) {
    let directory = tempfile::tempdir().unwrap();
    let pool = common::open_with(directory.path(), pages, engine);
    let tree = Tree::create(&pool, 0).unwrap();
    let mut stable = BTreeMap::new();
    for number in 0..STABLE {
        let key = key(0, number);
        tree.insert(&key, &value(&key, 0)).unwrap();
        stable.insert(key, 0);
    }
    for number in 0..COUNTERS {
        tree.insert(&counter(number), &[0; 8]).unwrap();
    }
    let (stop, increments) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut expected = stable.clone();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|me| {
                let (tree, stop, increments) = (&tree, &stop, &increments);
                scope.spawn(move || write(tree, me, stop, increments))
            })
            .collect();
        let scanner = scope.spawn(|| scan(&tree, &stop, &stable));
        let reader = scope.spawn(|| read(&tree, &stop));
        let _stop = Abort(&stop);
        let end = Instant::now() + seconds();
        while Instant::now() < end && !writers.iter().any(|writer| writer.is_finished()) {
            // The invariants of the tree hold at every moment.
            assert!(tree.check().unwrap().records >= STABLE + COUNTERS);
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            expected.extend(writer.join().expect("a writer found a mistake"));
        }
        assert!(scanner.join().expect("the scanner found a mistake") > 0);
        assert!(reader.join().expect("the reader found a mistake") > 0);
    });
    let verify = |tree: &Tree<&Pool>, pool: &Pool| {
        let shape = tree.check().unwrap();
        assert_eq!(shape.records, expected.len() as u64 + COUNTERS);
        assert_eq!(pool.pages_in_use(), shape.pages());
        let mut sum = 0;
        let mut range = tree.range("counter-".."counter-~");
        while let Some((_, value)) = range.try_next().unwrap() {
            sum += u64::from_le_bytes(value.try_into().unwrap());
        }
        assert_eq!(sum, increments.load(Ordering::Relaxed));
        for (key, version) in &expected {
            assert_eq!(tree.get(key, |found| check_value(key, found)).unwrap(), Some(*version));
        }
    };
    verify(&tree, &pool);
    pool.close().unwrap();
    drop(pool);
    let pool = common::open_with(directory.path(), pages, engine);
    verify(&Tree::open(&pool, 0).unwrap(), &pool);
}

#[test]
fn everything_at_once_in_memory() {
    everything_at_once(8192, common::engine());
}

/// The tree has about 800 pages, so most accesses find a page that was just evicted.
#[test]
fn everything_at_once_in_a_pool_of_a_tenth() {
    everything_at_once(80, common::engine());
}

/// Frames get other pages while threads read them optimistically.
#[test]
fn everything_at_once_in_frames() {
    everything_at_once(80, Choice::Only(Kind::Hashtable));
}

/// All threads work on the same leaf: restarts, latched descents, splits of the same nodes.
#[test]
fn everybody_at_the_same_place() {
    let (_directory, pool) = common::pool(512);
    let tree = Tree::create(&pool, 0).unwrap();
    let next = AtomicU64::new(0);
    let end = Instant::now() + seconds() / 2;
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    assert!(tree.insert(&number.to_be_bytes(), &[1; 100]).unwrap());
                    if let Some(old) = number.checked_sub(300) {
                        // The thread that took this number may not have inserted the record yet.
                        while !tree.remove(&old.to_be_bytes()).unwrap() {
                            assert!(
                                Instant::now() < end + Duration::from_secs(60),
                                "record {old} never came"
                            );
                            thread::yield_now();
                        }
                    }
                }
            });
        }
    });
    let inserted = next.load(Ordering::Relaxed);
    let shape = tree.check().unwrap();
    assert_eq!(shape.records, inserted.min(300));
    assert!(shape.pages() < 60, "{} pages for 300 records after {inserted}", shape.pages());
    assert_eq!(pool.pages_in_use(), shape.pages());
}
