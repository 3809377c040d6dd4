//! The power fails at each step of a workload. Afterwards the store has the writes of all commits up to some moment, and
//! no commit that was reported durable is missing.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::devices::Devices;
use super::{Model, builder, content};
use crate::store::{Durability, Error, NamedTree, Result, Store};

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The commits that were attempted.
struct History {
    /// The model after each commit, the last of which may not have taken place.
    states: Vec<Model>,
    /// Minimum number of durable commits.
    durable: usize,
}

/// One step. Returns `Ok(true)` if it was a commit.
fn step(store: &Store, random: &mut SmallRng, history: &mut History) -> Result<bool> {
    let mut model = history.states.last().unwrap().clone();
    let names = ["a", "b", "c"];
    let name = names[random.random_range(0..3)];
    match random.random_range(0..20) {
        0 => {
            store.checkpoint()?;
            return Ok(false);
        }
        1 if name == "c" => {
            // Another tree soon uses the pages of this one.
            let exists = model.remove(name).is_some();
            if !exists {
                model.insert(name.to_owned(), Default::default());
            }
            history.states.push(model);
            if exists {
                store.drop_tree(name)?
            } else {
                store.create_tree(name).map(drop)?
            }
            return Ok(true);
        }
        2 => {
            store.sync()?;
            history.durable = history.states.len() - 1;
            return Ok(false);
        }
        _ => {}
    }
    let mut transaction = store.write()?;
    for _ in 0..random.random_range(1..8) {
        let name = names[random.random_range(0..3)];
        let Some(records) = model.get_mut(name) else { continue };
        let tree = store.tree(name)?;
        let key = match random.random_range(0..3) {
            0 => random.random_range(0..40u64).to_be_bytes().to_vec(),
            1 => [vec![b'x'; 300], random.random_range(0..30u64).to_be_bytes().to_vec()].concat(),
            _ => random.random_range(0..200u64).to_be_bytes()[5..].to_vec(),
        };
        match random.random_range(0..10) {
            0..3 => {
                assert_eq!(transaction.remove(&tree, &key)?, records.remove(&key).is_some());
            }
            3 => {
                let end: Vec<u8> = [&key[..], &[9; 3]].concat();
                let before = records.len();
                records.retain(|found, _| *found < key || *found >= end);
                assert_eq!(transaction.remove_range::<Vec<u8>>(&tree, key..end)?, before - records.len());
            }
            _ => {
                let len = [0, 20, 200, 900, 1460, 5000, 9000][random.random_range(0..7)];
                let value = vec![random.random(); len];
                transaction.put(&tree, &key, &value)?;
                records.insert(key, value);
            }
        }
    }
    history.states.push(model);
    transaction.commit()?;
    Ok(true)
}

/// Runs until an error.
fn run(
    store: &Store,
    random: &mut SmallRng,
    history: &mut History,
    durability: Durability,
    steps: usize,
) -> Result<()> {
    for _ in 0..steps {
        if step(store, random, history)? && durability == Durability::Sync {
            history.durable = history.states.len() - 1;
        }
    }
    Ok(())
}

/// Runs a workload on devices that lose power as `arm` sets, and compares the content. Returns whether the workload failed.
fn crash_at(seed: u64, durability: Durability, arm: impl Fn(&Devices)) -> bool {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(seed);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut history = History { states: vec![Model::new()], durable: 0 };
    arm(&devices);
    let opened = builder(lock.path(), &devices, durability).open();
    let outcome = opened.and_then(|store| {
        for name in ["a", "b"] {
            let mut model = history.states.last().unwrap().clone();
            model.insert(name.to_owned(), Default::default());
            history.states.push(model);
            store.create_tree(name)?;
            if durability == Durability::Sync {
                history.durable += 1;
            }
        }
        run(&store, &mut random, &mut history, durability, 150)
    });
    let was_disturbed = outcome.is_err();
    // Recovery is interrupted too.
    for again in 0..3 {
        devices.crash();
        if again < 2 {
            devices.log.fuse(2 + again + seed % 7);
            devices.pages.fuse(3 + seed % 11);
            let _ = builder(lock.path(), &devices, durability).open();
        }
    }
    let store = builder(lock.path(), &devices, durability).open().unwrap();
    let found = content(&store).unwrap();
    let at = history.states[history.durable..].iter().position(|state| *state == found);
    let Some(at) = at else {
        let before = history.states[..history.durable].iter().rposition(|state| *state == found);
        panic!("{} durable of {}, found {before:?}, {outcome:?}", history.durable, history.states.len());
    };
    for name in store.trees() {
        store.handle(&store.tree(&name).unwrap().0).walk(&mut |_| {}).unwrap();
    }
    // The store continues.
    history.states.truncate(history.durable + at + 1);
    run(&store, &mut random, &mut history, durability, 20).unwrap();
    assert_eq!(content(&store).unwrap(), *history.states.last().unwrap());
    store.close().unwrap();
    let store = builder(lock.path(), &devices, durability).open().unwrap();
    assert_eq!(content(&store).unwrap(), *history.states.last().unwrap());
    was_disturbed
}

#[test]
fn nothing_durable_is_lost_and_nothing_uncommitted_is_seen() {
    let first = number("BEDPLATE_TEST_SEED", 1);
    let seeds = number("BEDPLATE_TEST_STORE_CRASHES", 8);
    for seed in first..first + seeds {
        println!("BEDPLATE_TEST_SEED={seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        let (log, pages) = (random.random_range(1..250), random.random_range(1..700));
        for durability in [Durability::Sync, Durability::Async] {
            crash_at(seed, durability, |devices| devices.log.fuse(log));
            crash_at(seed, durability, |devices| devices.pages.fuse(pages));
        }
    }
}

#[test]
fn each_operation_of_the_log_may_be_the_last_one() {
    let seed = number("BEDPLATE_TEST_SEED", 1);
    println!("BEDPLATE_TEST_SEED={seed}");
    let most = number("BEDPLATE_TEST_STORE_CRASHES", 30);
    for operation in 1..=most {
        assert!(crash_at(seed, Durability::Sync, |devices| devices.log.fuse(operation)), "{operation}");
    }
}

/// Changes inside leaves have no record but the commit's: a page that is evicted with them waits for that record. Nothing else
/// makes the log written here.
#[test]
fn pages_with_changes_that_have_no_record_wait_for_the_commit() {
    let locks = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let devices = Devices::new(1);
    let open = |lock: usize| builder(locks[lock].path(), &devices, Durability::Async).open().unwrap();
    let store = open(0);
    let tree = store.create_tree("a").unwrap();
    let key = |n: u64| (n * 37 % 400).to_be_bytes();
    // One page stays in memory, and the other is soon evicted.
    let put = |store: &Store, tree: &NamedTree, n: u64, byte| {
        let hot = [&n.to_le_bytes()[..], &[byte]].concat();
        let done = store.update(|transaction| {
            transaction.put(tree, b"hot", &hot)?;
            transaction.put(tree, &key(n), &[byte; 700])
        });
        done.unwrap();
    };
    // In the second round, leaves have the room for a change in place.
    for n in (0..400).chain(0..400) {
        put(&store, &tree, n, 0);
    }
    store.close().unwrap();
    let store = open(0);
    let tree = store.tree("a").unwrap();
    let before = store.log.end();
    for n in 0..300 {
        put(&store, &tree, n, 1);
    }
    assert!(store.log.end() - before < 300 * 900, "no images");
    // A drop would write the log.
    std::mem::forget(store);
    devices.crash();
    let found = &content(&open(1)).unwrap()["a"];
    let is_new = |n| found[&key(n)[..]][0] == 1;
    let count = (0..400).take_while(|n| is_new(*n)).count();
    assert_eq!((0..400).filter(|n| is_new(*n)).count(), count, "commits up to some moment");
    assert_eq!(found[&b"hot"[..]], [&(count as u64 - 1).to_le_bytes()[..], &[1]].concat());
    assert!(count > 100, "{count}: the pages that were evicted had commits durable");
}

#[test]
fn a_damaged_log_is_refused_and_a_store_without_its_log() {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(1);
    let store = builder(lock.path(), &devices, Durability::Sync).open().unwrap();
    store.create_tree("a").unwrap();
    drop(store);
    devices.log.clear();
    let opened = builder(lock.path(), &devices, Durability::Sync).open();
    assert!(matches!(opened, Err(Error::Missing(_))), "{:?}", opened.err());
}
