//! The log's disk has no space. A commit fails before it has changed anything, and the store continues.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::devices::Devices;
use super::{builder, content};
use crate::store::limits::{LOG_SLACK_BYTES, LOG_STEP_BYTES, SEGMENT_BYTES};
use crate::store::{Durability, Error, Store};

/// Commits random transactions until one fails for lack of space. No other error is possible, because the reservation is enough
/// for all changes of a commit to the trees.
fn run(store: &Store, random: &mut SmallRng) -> usize {
    let tree = store.tree("a").unwrap();
    for count in 0.. {
        let mut transaction = store.write().unwrap();
        for _ in 0..random.random_range(1..60) {
            let key = [vec![b'k'; 200], random.random_range(0..3000u64).to_be_bytes().to_vec()].concat();
            if random.random_range(0..3) == 0 {
                transaction.remove(&tree, &key).unwrap();
            } else {
                let len = [0, 100, 700, 1200, 5000][random.random_range(0..5)];
                transaction.put(&tree, &key, &vec![count as u8; len]).unwrap();
            }
        }
        match transaction.commit() {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => return count,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[test]
fn a_commit_without_space_for_its_log_changes_nothing() {
    for seed in 1..5 {
        println!("seed {seed}");
        let lock = tempfile::tempdir().unwrap();
        let devices = Devices::new(seed);
        let mut random = SmallRng::seed_from_u64(seed);
        let durability = if seed % 2 == 0 { Durability::Sync } else { Durability::Async };
        let open = || builder(lock.path(), &devices, durability).open().unwrap();
        let mut store = open();
        store.create_tree("a").unwrap();
        // The first limit is within a segment, others are beyond one.
        for limit in [LOG_STEP_BYTES, 3 * LOG_STEP_BYTES / 2, SEGMENT_BYTES + 100_000, 3 * SEGMENT_BYTES] {
            devices.log.limit(limit);
            let committed = run(&store, &mut random);
            let mut trees = 0;
            let error = loop {
                match store.create_tree(&format!("{limit} {trees}")) {
                    Ok(_) => trees += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::NoSpace(_)), "{committed}, {trees}: {error}");
            let before = content(&store).unwrap();
            assert!(matches!(store.drop_tree("a"), Err(Error::NoSpace(_))));
            store.sync().unwrap();
            assert_eq!(content(&store).unwrap(), before);
            drop(store);
            devices.crash();
            store = open();
            assert_eq!(content(&store).unwrap(), before, "limit {limit}");
            store.checkpoint().unwrap();
        }
        devices.log.limit(u64::MAX);
        store.create_tree("b").unwrap();
    }
}

#[test]
fn a_checkpoint_and_recovery_have_space_of_their_own() {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(1);
    let open = || builder(lock.path(), &devices, Durability::Sync).open().unwrap();
    let store = open();
    store.create_tree("a").unwrap();
    devices.log.limit(devices.log.takes());
    run(&store, &mut SmallRng::seed_from_u64(1));
    let used = store.log.end();
    for _ in 0..100 {
        store.checkpoint().unwrap();
    }
    drop(store);
    for _ in 0..20 {
        devices.crash();
        drop(open());
    }
    assert!(open().log.end() < used + LOG_SLACK_BYTES);
}

#[test]
fn without_space_for_another_segment_the_log_goes_on_in_the_same_one() {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(1);
    let open = || {
        let builder = builder(lock.path(), &devices, Durability::Sync);
        builder.checkpoint_bytes(u64::MAX).open().unwrap()
    };
    let store = open();
    let tree = store.create_tree("a").unwrap();
    let put = |n: u64| store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &[1; 1000]));
    let limit = SEGMENT_BYTES + 2 * LOG_STEP_BYTES;
    devices.log.limit(limit);
    let mut count = 0;
    while put(count % 500).is_ok() {
        count += 1;
    }
    assert!(store.log.end() > SEGMENT_BYTES + LOG_SLACK_BYTES, "{}", store.log.end());
    drop(store);
    devices.crash();
    let store = open();
    assert_eq!(content(&store).unwrap()["a"].len(), 500);
    devices.log.limit(u64::MAX);
    let tree = store.tree("a").unwrap();
    for n in 0..3u64 {
        store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &[2; 1000])).unwrap();
    }
    drop(store);
    assert_eq!(content(&open()).unwrap()["a"].len(), 500);
}
