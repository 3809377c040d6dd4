//! Compares transactions with a model: random operations, long-lived snapshots, cursors that change direction, and
//! stores that are reopened. Also tests the limits.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;

use bedplate_btree::store::{
    Durability, Error, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_WRITES, MAX_TREE_NAME, MAX_TREES, NamedTree,
    ReadTransaction, Result, Store, WriteTransaction,
};
use bedplate_btree::{MAX_KEY, MAX_VALUE};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(directory: &TempDir) -> Store {
    let builder = Store::builder(directory.path()).memory(64 * 4096).capacity(256 << 20);
    builder.durability(Durability::Async).checkpoint_bytes(1 << 20).open().unwrap()
}

fn key(random: &mut SmallRng) -> Vec<u8> {
    match random.random_range(0..4) {
        0 => vec![random.random_range(0..4); random.random_range(0..4)],
        1 => [&[b'p'; 200][..], &random.random_range(0..60u16).to_be_bytes()].concat(),
        _ => random.random_range(0..500u16).to_be_bytes().to_vec(),
    }
}

fn bound(random: &mut SmallRng) -> Bound<Vec<u8>> {
    match random.random_range(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(random)),
        _ => Bound::Excluded(key(random)),
    }
}

/// Compares a cursor that moves randomly with the model.
macro_rules! compare {
    ($transaction:expr, $tree:expr, $model:expr, $random:expr) => {{
        let (transaction, tree, model, random) = ($transaction, $tree, $model, &mut *$random);
        let range = (bound(random), bound(random));
        let is_inside = |key: &Vec<u8>| {
            std::ops::RangeBounds::<Vec<u8>>::contains(&(range.0.as_ref(), range.1.as_ref()), key)
        };
        let inside: Vec<(&Vec<u8>, &Vec<u8>)> = model.iter().filter(|(key, _)| is_inside(key)).collect();
        let mut cursor = transaction.cursor(tree, range.clone()).unwrap();
        // If `low == high`, the cursor is between records `low - 1` and `low`. Otherwise it is at record `low`.
        let (mut low, mut high) = (0, 0);
        for _ in 0..random.random_range(1..60) {
            match random.random_range(0..12) {
                0 => {
                    let key = key(random);
                    cursor.seek(&key);
                    low = inside.partition_point(|(found, _)| **found < key);
                    high = low;
                }
                1 => {
                    cursor.seek_first();
                    (low, high) = (0, 0);
                }
                2 => {
                    cursor.seek_last();
                    (low, high) = (inside.len(), inside.len());
                }
                3..=5 => {
                    let expected = low.checked_sub(1).map(|at| (&inside[at].0[..], &inside[at].1[..]));
                    assert_eq!(cursor.try_prev().unwrap(), expected);
                    (low, high) = (low.saturating_sub(1), low);
                }
                _ => {
                    let expected = inside.get(high).map(|(key, value)| (&key[..], &value[..]));
                    assert_eq!(cursor.try_next().unwrap(), expected);
                    (low, high) = (high, (high + 1).min(inside.len()));
                }
            }
        }
        drop(cursor);
        let up: Result<Vec<_>> = transaction.range(tree, range.clone()).unwrap().collect();
        let expected = |(key, value): &(&Vec<u8>, &Vec<u8>)| ((*key).clone(), (*value).clone());
        assert_eq!(up.unwrap(), inside.iter().map(expected).collect::<Vec<_>>());
        let down: Result<Vec<_>> = transaction.range_rev(tree, range).unwrap().collect();
        assert_eq!(down.unwrap(), inside.iter().rev().map(expected).collect::<Vec<_>>());
        let prefix = [b'p'; 3];
        let count = model.keys().filter(|key| key.starts_with(&prefix)).count();
        assert_eq!(transaction.prefix(tree, &prefix).unwrap().count(), count);
        let key = key(random);
        assert_eq!(transaction.get(tree, &key).unwrap().as_ref(), model.get(&key));
        assert_eq!(transaction.contains(tree, &key).unwrap(), model.contains_key(&key));
        let keys: Vec<Vec<u8>> = (0..random.random_range(0..100)).map(|_| self::key(random)).collect();
        let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
        assert_eq!(transaction.get_many(tree, &keys).unwrap(), expected);
    }};
}

fn change(
    transaction: &mut WriteTransaction<'_>,
    tree: &NamedTree,
    model: &mut Model,
    random: &mut SmallRng,
) {
    for _ in 0..random.random_range(1..30) {
        let key = key(random);
        let len = [0, 8, 300, 1400, 6000][random.random_range(0..5)];
        let value = vec![random.random(); len];
        match random.random_range(0..8) {
            0 | 1 => {
                assert_eq!(transaction.remove(tree, &key).unwrap(), model.remove(&key).is_some());
            }
            2 => {
                let is_new = !model.contains_key(&key);
                assert_eq!(transaction.insert(tree, &key, &value).unwrap(), is_new);
                model.entry(key).or_insert(value);
            }
            3 => {
                let end = [&key[..], &[40]].concat();
                let before = model.len();
                model.retain(|found, _| *found < key || *found > end);
                assert_eq!(transaction.remove_range(tree, key..=end).unwrap(), before - model.len());
            }
            _ => {
                transaction.put(tree, &key, &value).unwrap();
                model.insert(key, value);
            }
        }
    }
}

/// Runs transactions while snapshots stay open. Each snapshot sees the state of the model at its start.
fn rounds(store: &Store, model: &mut Model, random: &mut SmallRng) {
    let tree = store.tree("tree").unwrap();
    let mut snapshots: Vec<(ReadTransaction<'_>, Model)> = Vec::new();
    for _ in 0..25 {
        let mut transaction = store.write().unwrap();
        let mut changed = model.clone();
        change(&mut transaction, &tree, &mut changed, random);
        compare!(&transaction, &tree, &changed, random);
        match random.random_range(0..6) {
            // The transaction is rolled back.
            0 => drop(transaction),
            // Another transaction commits first, and this one has read a key that the other one writes.
            1 => {
                transaction.get(&tree, b"conflict").unwrap();
                let value: [u8; 4] = random.random();
                store.update(|other| other.put(&tree, b"conflict", &value)).unwrap();
                model.insert(b"conflict".to_vec(), value.to_vec());
                assert!(matches!(transaction.commit(), Err(Error::Conflict)));
            }
            _ => {
                transaction.commit().unwrap();
                *model = changed;
            }
        }
        if random.random_range(0..3) == 0 {
            snapshots.push((store.read().unwrap(), model.clone()));
        }
        if snapshots.len() > 4 {
            snapshots.swap_remove(random.random_range(0..4));
        }
        for (snapshot, model) in &snapshots {
            compare!(snapshot, &tree, model, random);
        }
    }
    drop(snapshots);
    assert_eq!(store.statistics().version_bytes, 0);
}

#[test]
fn random_transactions_are_what_a_model_says() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("BEDPLATE_TEST_SEED").unwrap_or(1);
    for seed in first..first + number("BEDPLATE_TEST_STORE_RUNS").unwrap_or(4) {
        println!("BEDPLATE_TEST_SEED={seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        let directory = tempfile::tempdir().unwrap();
        let mut model = Model::new();
        let mut store = open(&directory);
        store.create_tree("tree").unwrap();
        for _ in 0..4 {
            rounds(&store, &mut model, &mut random);
            if random.random() {
                store.close().unwrap()
            } else {
                drop(store)
            }
            store = open(&directory);
            compare!(&store.read().unwrap(), &store.tree("tree").unwrap(), &model, &mut random);
        }
    }
}

#[test]
fn trees_are_created_opened_and_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let tree = store.create_tree("one").unwrap();
    assert!(matches!(store.create_tree("one"), Err(Error::TreeExists(_))));
    assert!(matches!(store.tree("two"), Err(Error::NoSuchTree(_))));
    store.update(|transaction| transaction.put(&tree, b"k", b"v")).unwrap();
    let snapshot = store.read().unwrap();
    assert!(matches!(store.drop_tree("one"), Err(Error::Busy)));
    drop(snapshot);
    store.drop_tree("one").unwrap();
    assert!(matches!(store.read().unwrap().get(&tree, b"k"), Err(Error::NoSuchTree(_))));
    let again = store.create_tree("one").unwrap();
    assert_eq!(store.read().unwrap().get(&again, b"k").unwrap(), None, "another tree of the same name");
    assert!(matches!(store.read().unwrap().get(&tree, b"k"), Err(Error::NoSuchTree(_))));
    let other_directory = tempfile::tempdir().unwrap();
    let other = open(&other_directory);
    assert!(matches!(other.read().unwrap().get(&again, b"k"), Err(Error::OtherStore(_))));
    assert!(matches!(Store::builder(directory.path()).open(), Err(Error::InUse(_))));
    // The error names the path that is not a directory.
    let file = directory.path().join("lock");
    let error = Store::builder(&file).open().err().unwrap();
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    drop(store);
    assert_eq!(open(&directory).trees(), ["one"]);
}

#[test]
fn limits_are_errors_that_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    for name in [String::new(), "n".repeat(MAX_TREE_NAME + 1)] {
        assert!(matches!(store.create_tree(&name), Err(Error::TreeName)));
    }
    let tree = store.create_tree(&"n".repeat(MAX_TREE_NAME)).unwrap();
    let mut transaction = store.write().unwrap();
    let long = vec![1; MAX_KEY + 1];
    let refused = transaction.put(&tree, &long, b"");
    assert!(matches!(refused, Err(Error::Tree(bedplate_btree::Error::KeyTooLong { .. }))));
    let refused = transaction.insert(&tree, &long, b"");
    assert!(matches!(refused, Err(Error::Tree(bedplate_btree::Error::KeyTooLong { .. }))));
    assert!(!transaction.remove(&tree, &long).unwrap() && transaction.get(&tree, &long).unwrap().is_none());
    let refused = transaction.put(&tree, b"k", &vec![1; MAX_VALUE + 1]);
    assert!(matches!(refused, Err(Error::Tree(bedplate_btree::Error::ValueTooLong { .. }))));
    transaction.put(&tree, &long[1..], b"longest key").unwrap();
    transaction.commit().unwrap();
    // The limit of the bytes of a transaction.
    let mut transaction = store.write().unwrap();
    let value = vec![0; MAX_VALUE];
    for n in 0..3u8 {
        transaction.put(&tree, &[n], &value).unwrap();
    }
    let rest = MAX_TRANSACTION_BYTES - 3 * (MAX_VALUE + 1) - 1;
    assert!(matches!(transaction.put(&tree, &[3], &vec![0; rest + 1]), Err(Error::TransactionTooLarge)));
    transaction.put(&tree, &[3], &vec![0; rest]).unwrap();
    // A second write of a key replaces the first.
    transaction.put(&tree, &[3], &vec![0; rest]).unwrap();
    drop(transaction);
    // The limit of the number of writes of a transaction.
    let mut transaction = store.write().unwrap();
    for n in 0..MAX_TRANSACTION_WRITES as u64 {
        transaction.put(&tree, &n.to_be_bytes(), b"").unwrap();
    }
    assert!(matches!(transaction.put(&tree, b"one more", b""), Err(Error::TransactionTooLarge)));
    drop(transaction);
    assert_eq!(store.read().unwrap().range::<&[u8]>(&tree, ..).unwrap().count(), 1);
    for n in 1..MAX_TREES {
        store.create_tree(&n.to_string()).unwrap();
    }
    assert!(matches!(store.create_tree("one more"), Err(Error::TooManyTrees)));
    assert_eq!(store.trees().len(), MAX_TREES);
    drop(store);
    assert_eq!(open(&directory).trees().len(), MAX_TREES);
}

#[test]
fn snapshots_beyond_the_limit_of_versions_are_too_old_and_newer_ones_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::builder(directory.path()).version_bytes(20_000).open().unwrap();
    let tree = store.create_tree("t").unwrap();
    let put = |byte| store.update(|transaction| transaction.put(&tree, b"k", &[byte; 5000]));
    put(0).unwrap();
    let old = store.read().unwrap();
    let mut stale = store.write().unwrap();
    stale.get(&tree, b"k").unwrap();
    stale.put(&tree, b"other", b"").unwrap();
    for byte in 1..=3 {
        put(byte).unwrap();
        assert_eq!(old.get(&tree, b"k").unwrap().unwrap(), [0; 5000]);
    }
    let newer = store.read().unwrap();
    put(4).unwrap();
    assert!(matches!(old.get(&tree, b"k"), Err(Error::SnapshotTooOld)));
    assert!(matches!(old.range::<&[u8]>(&tree, ..).unwrap().next(), Some(Err(Error::SnapshotTooOld))));
    assert!(matches!(stale.commit(), Err(Error::SnapshotTooOld)));
    assert_eq!(newer.get(&tree, b"k").unwrap().unwrap(), [3; 5000]);
}

#[test]
fn checkpoints_bound_the_log_and_a_closed_store_has_nothing_to_repeat() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let tree = store.create_tree("t").unwrap();
    for n in 0..400u64 {
        store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &[1; 100_000])).unwrap();
        store.update(|transaction| transaction.remove(&tree, &n.to_be_bytes())).unwrap();
    }
    let statistics = store.statistics();
    assert!(statistics.checkpoints > 20 && statistics.failed_checkpoints == 0, "{statistics:?}");
    assert!(statistics.log_bytes > 60 << 20, "{statistics:?}");
    let names = || std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let segments = || names().filter(|path| path.to_str().unwrap().contains("/log.")).count();
    assert!(segments() <= 2, "{}", segments());
    store.close().unwrap();
    let store = open(&directory);
    assert_eq!(store.read().unwrap().range::<&[u8]>(&store.tree("t").unwrap(), ..).unwrap().count(), 0);
}

#[test]
fn transactions_can_be_sent_to_other_threads() {
    fn sent<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    sent::<ReadTransaction<'_>>();
    sent::<WriteTransaction<'_>>();
    shared::<Store>();
    shared::<NamedTree>();
}

#[test]
fn durations_are_those_of_operations_that_succeeded() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::builder(directory.path()).memory(1 << 20).open().unwrap();
    let tree = store.create_tree("a").unwrap();
    let before = store.latencies();
    assert_eq!((before.commits.count, before.checkpoints.count), (0, 1));
    for n in 0..10u64 {
        store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), b"value")).unwrap();
    }
    // A transaction that wrote nothing, and one that conflicts.
    store.update(|transaction| transaction.get(&tree, b"key").map(drop)).unwrap();
    let mut conflicting = store.write().unwrap();
    conflicting.get(&tree, &1u64.to_be_bytes()).unwrap();
    conflicting.put(&tree, b"key", b"value").unwrap();
    store.update(|transaction| transaction.put(&tree, &1u64.to_be_bytes(), b"other")).unwrap();
    assert!(matches!(conflicting.commit(), Err(Error::Conflict)));
    store.checkpoint().unwrap();
    let after = store.latencies();
    assert_eq!((after.commits.count, after.checkpoints.count), (11, 2));
    assert!(after.log_writes.count >= before.log_writes.count + 11, "each commit waits for its own");
    for latency in [after.commits, after.log_writes, after.checkpoints] {
        assert!(!latency.p50.is_zero() && latency.p50 <= latency.p99 && latency.p99 <= latency.max);
    }
}
