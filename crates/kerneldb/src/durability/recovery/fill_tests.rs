//! Filling a database from user space, against a model. The operators must find the same memory as if they had
//! written it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::{Filler, ReplayTarget};
use crate::durability::wal::OpRef;
use crate::limits::CHAIN_ENTRIES_MAX;
use crate::{Config, Database, Error, KEY_MAX, SetOptions, SnapshotItem, VALUE_MAX, hash};

/// Value and expiry by key.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

/// An expiry that is later than any test, in ms.
const FUTURE: u64 = 4_000_000_000_000;

/// An empty filler; `None` where eBPF programs cannot be loaded.
fn filler(config: Config) -> Option<Filler> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loading eBPF programs needs root");
        return None;
    }
    Some(Filler::new(Arc::new(Database::create(config).unwrap())).unwrap())
}

fn contents(database: &Database) -> Model {
    let mut found = Model::new();
    let snapshot = database.snapshot().unwrap();
    let mut add = |item: SnapshotItem<'_>| {
        let value = (item.value.to_vec(), item.expire_at_ms);
        assert!(found.insert(item.key.to_vec(), value).is_none(), "a key is there twice");
    };
    snapshot.scan(0, snapshot.positions(), &mut add).unwrap();
    found
}

/// A length around the limits of all representations of values.
fn length(random: &mut SmallRng) -> usize {
    let around = [0, 8, 16, 32, 100, 1000, 4096, 8192, 65_520, 65_528, VALUE_MAX][random.random_range(0..11)];
    (around + random.random_range(0..9usize)).saturating_sub(4).min(VALUE_MAX)
}

/// One transaction of random changes to a few keys.
fn change(filler: &Filler, model: &mut Model, random: &mut SmallRng, ts: u64, keys: u64) {
    filler.begin(ts);
    for _ in 0..random.random_range(1..4) {
        let number = random.random_range(0..keys);
        let mut key = number.to_le_bytes().to_vec();
        key.resize(1 + number as usize % KEY_MAX, number as u8);
        key.truncate(KEY_MAX);
        key[0] = number as u8;
        if random.random_bool(0.3) {
            filler.change(OpRef::Delete { key: &key });
            model.remove(&key);
            continue;
        }
        let mut value = vec![0; length(random)];
        random.fill_bytes(&mut value);
        let expire_at_ms = random.random_bool(0.3).then(|| FUTURE + u64::from(random.random::<u32>()));
        filler.change(OpRef::Put { key: &key, value: &value, expire_at_ms });
        model.insert(key, (value, expire_at_ms));
    }
    filler.end().unwrap();
}

#[test]
fn what_was_filled_is_what_the_operators_find_and_go_on_with() {
    for (seed, partitions, ring) in [(1, 1, 1 << 20), (2, 1, 0), (3, 3, 1 << 20)] {
        let config =
            Config { memory_bytes: 192 << 20, partitions, wal_ring_bytes: ring, ..Config::default() };
        let Some(filler) = filler(config) else { return };
        let mut random = SmallRng::seed_from_u64(seed);
        let mut model = Model::new();
        for ts in 1..=6000 {
            change(&filler, &mut model, &mut random, ts, 1500);
        }
        filler.set_clock(6000).unwrap();
        let database = filler.done();
        assert_eq!(database.verify().unwrap().keys, model.len() as u64);
        assert!(contents(&database) == model);
        let expiring = model.values().filter(|(_, expiry)| expiry.is_some()).count();
        assert_eq!(database.stats().keys, model.len() as u64);
        assert_eq!(database.stats().expiring_keys, expiring as u64);
        // The operators read, overwrite and delete all of it, and use the free blocks in its slabs.
        let mut log = database.log_reader();
        let mut session = database.session().unwrap();
        for (at, (key, (value, expiry))) in model.iter_mut().enumerate() {
            let found = session.get(key).unwrap().unwrap();
            assert_eq!((&found.data, found.expire_at_ms), (&*value, *expiry));
            let new = vec![at as u8; length(&mut random)];
            session.set(key, &new, SetOptions::default()).unwrap();
            (*value, *expiry) = (new, None);
            if at % 64 == 0
                && let Some(log) = &mut log
            {
                while log.drain(usize::MAX, &mut |_| ()) > 0 {}
            }
        }
        assert!(contents(&database) == model);
        drop(session);
        database.verify().unwrap();
    }
}

#[test]
fn an_older_change_is_ignored() {
    let Some(filler) = filler(Config { memory_bytes: 16 << 20, ..Config::default() }) else { return };
    let put = |ts, value: &[u8]| {
        filler.begin(ts);
        filler.change(OpRef::Put { key: b"key", value, expire_at_ms: None });
        filler.end().unwrap();
    };
    put(7, b"new");
    put(6, b"old");
    filler.begin(5);
    filler.change(OpRef::Delete { key: b"key" });
    filler.end().unwrap();
    filler.set_clock(7).unwrap();
    assert_eq!(filler.done().session().unwrap().get(b"key").unwrap().unwrap().data, b"new");
}

fn put(filler: &Filler, ts: u64, key: &[u8], value: &[u8]) {
    filler.begin(ts);
    filler.change(OpRef::Put { key, value, expire_at_ms: None });
    filler.end().unwrap();
}

/// Sets keys to values of many sizes until 200 did not fit.
fn fill(database: &Database, random: &mut SmallRng) {
    let mut session = database.session().unwrap();
    let mut misses = 0;
    while misses < 200 {
        let (number, bytes) = (random.random::<u32>(), random.random_range(1..4000));
        match session.set(&number.to_le_bytes(), &vec![number as u8; bytes], SetOptions::default()) {
            Ok(_) => {}
            Err(Error::NoMemory) => misses += 1,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Slabs of the loaders that are not full must not make a database too large for its memory, however often it is
/// filled and recovered.
#[test]
fn a_full_database_can_be_recovered_again_and_again() {
    let config = Config { memory_bytes: 64 << 20, ..Config::default() };
    let Some(_) = filler(config.clone()) else { return };
    let mut random = SmallRng::seed_from_u64(5);
    let mut database = Arc::new(Database::create(config.clone()).unwrap());
    for _ in 0..6 {
        fill(&database, &mut random);
        let full = contents(&database);
        assert!(full.len() > 10_000, "{} keys", full.len());
        let filler = filler(config.clone()).unwrap();
        for (ts, (key, (value, _))) in (1..).zip(&full) {
            put(&filler, ts, key, value);
        }
        filler.set_clock(full.len() as u64).unwrap();
        database = filler.done();
        assert!(contents(&database) == full);
        assert_eq!(database.verify().unwrap().keys, full.len() as u64);
        let beyond = database.stats().memory_used.saturating_sub(64 << 20);
        assert!(beyond <= 12 << 20, "{beyond} bytes beyond the limit, of 16 MiB");
    }
}

/// The log of a database may contain every size that a value ever had. Only the last one needs memory.
#[test]
fn values_that_changed_their_size_need_no_more_memory_than_the_last_ones() {
    const KEYS: u32 = 40_000;
    let Some(filler) = filler(Config { memory_bytes: 64 << 20, ..Config::default() }) else { return };
    let mut random = SmallRng::seed_from_u64(6);
    let mut keys: Vec<u32> = (0..KEYS).collect();
    let mut ts = 0;
    for bytes in [1000, 1200, 700, 1100, 300] {
        for at in (1..keys.len()).rev() {
            keys.swap(at, random.random_range(0..=at));
        }
        for key in &keys {
            ts += 1;
            put(&filler, ts, &key.to_le_bytes(), &vec![*key as u8; bytes]);
        }
    }
    filler.set_clock(ts).unwrap();
    let database = filler.done();
    let found = contents(&database);
    assert_eq!(found.len(), KEYS as usize);
    assert!(found.values().all(|(value, _)| value.len() == 300));
    assert!(database.stats().memory_used <= 64 << 20, "the reserve was needed");
    database.verify().unwrap();
}

#[test]
fn a_chain_has_the_same_limit_as_elsewhere() {
    let Some(filler) = filler(Config { memory_bytes: 16 << 20, ..Config::default() }) else { return };
    let secret = filler.database.engine().control.secrets.hash_key;
    let bucket = |key: &[u8]| filler.database.engine().bucket_of(0, hash::hash(secret, key));
    let mut keys = (0u64..).map(u64::to_le_bytes).filter(|key| bucket(key) == 0);
    let mut put = |ts| {
        filler.begin(ts);
        let key = keys.next().unwrap();
        filler.change(OpRef::Put { key: &key, value: b"v", expire_at_ms: None });
        filler.end().unwrap();
    };
    (1..=CHAIN_ENTRIES_MAX as u64 + 1).for_each(&mut put);
    assert!(matches!(filler.set_clock(CHAIN_ENTRIES_MAX as u64 + 1), Err(Error::ChainFull)));
}
