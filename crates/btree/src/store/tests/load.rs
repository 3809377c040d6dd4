//! Loads on devices that fail and lose power: afterwards the store has all of a dump, or nothing of it.

use super::devices::{Devices, NewDevices};
use super::{Model, builder, content};
use crate::store::load::create_from_dump;
use crate::store::{Durability, Error, LoadPolicy, Store};

/// Bytes of pages in memory while a store is made: fewer than it has.
const MEMORY: usize = 32 * bedplate_bufpool::PAGE;

/// A dump of a few trees, and their records.
pub fn dump() -> (Vec<u8>, Model) {
    let lock = tempfile::tempdir().unwrap();
    let store = builder(lock.path(), &Devices::new(1), Durability::Sync).open().unwrap();
    for (name, seed) in [("a", 1u64), ("b", 2), ("empty", 0), ("z", 3)] {
        let tree = store.create_tree(name).unwrap();
        let put = |transaction: &mut crate::store::WriteTransaction<'_>| {
            (0..80 * seed).try_for_each(|n| {
                let value = vec![seed as u8; [0, 50, 1400, 10_000][(n % 4) as usize]];
                transaction.put(&tree, &(n * seed).to_be_bytes(), &value)
            })
        };
        store.update(put).unwrap();
    }
    let mut dump = Vec::new();
    store.dump(&mut dump, &mut |_| {}).unwrap();
    (dump, content(&store).unwrap())
}

fn open(devices: &Devices) -> Store {
    let lock = tempfile::tempdir().unwrap();
    builder(lock.path(), devices, Durability::Sync).open().unwrap()
}

#[test]
fn a_power_failure_at_any_write_leaves_no_new_store_or_a_whole_one() {
    let (dump, model) = dump();
    let make = |arm: &dyn Fn(&Devices)| {
        let mut target = NewDevices::new(1);
        arm(&target.devices);
        let done = create_from_dump(&mut target, MEMORY, &dump[..], &mut |_| {}).is_ok();
        assert_eq!(done, target.is_published);
        target.devices.crash();
        if done {
            let store = open(&target.devices);
            assert_eq!(content(&store).unwrap(), model);
            store.close().unwrap();
            assert_eq!(content(&open(&target.devices)).unwrap(), model);
        }
        done
    };
    let (mut pages, mut failed) = (1, 0);
    while !make(&|devices| devices.pages.fuse(pages)) {
        pages += 1 + pages / 16;
        failed += 1;
    }
    assert!(failed > 20, "{failed}");
    let mut operation = 1;
    while !make(&|devices| devices.log.fuse(operation)) {
        operation += 1;
    }
    assert!(operation > 3, "{operation}");
    assert!(!make(&|devices| devices.pages.fail(0, 0, 1_000_000)));
}

/// A store that has one of the trees of the dump.
fn existing(devices: &Devices, durability: Durability) -> (tempfile::TempDir, Store) {
    let lock = tempfile::tempdir().unwrap();
    let store = builder(lock.path(), devices, durability).checkpoint_bytes(200_000).open().unwrap();
    for (name, byte) in [("b", 7), ("own", 8)] {
        let tree = store.create_tree(name).unwrap();
        let put = |transaction: &mut crate::store::WriteTransaction<'_>| {
            (0..60u64).try_for_each(|n| transaction.put(&tree, &(n * 3).to_be_bytes(), &[byte; 900]))
        };
        store.update(put).unwrap();
    }
    (lock, store)
}

/// The content after a load.
fn loaded(before: &Model, dump: &Model, policy: LoadPolicy) -> Model {
    let mut after = before.clone();
    for (name, records) in dump {
        if policy == LoadPolicy::Merge {
            after.entry(name.clone()).or_default().extend(records.clone());
        } else {
            after.insert(name.clone(), records.clone());
        }
    }
    after
}

fn is_sound(store: &Store) -> bool {
    let mut reached = store.catalog.check().unwrap().pages();
    for name in store.trees() {
        let tree = store.tree(&name).unwrap();
        reached += store.handle(&tree.0).walk(&mut |_| {}).unwrap().pages();
    }
    reached == store.pool.pages_in_use()
}

#[test]
fn each_policy_loads_what_it_says_and_leaves_no_page_behind() {
    let (dump, model) = dump();
    for durability in [Durability::Sync, Durability::Async] {
        for policy in [LoadPolicy::Refuse, LoadPolicy::Replace, LoadPolicy::Merge] {
            let devices = Devices::new(1);
            let (lock, store) = existing(&devices, durability);
            let before = content(&store).unwrap();
            let old = store.tree("b").unwrap();
            // A damaged dump changes nothing, wherever it is damaged.
            for at in (0..dump.len()).step_by(dump.len() / 40) {
                let mut damaged = dump.clone();
                damaged[at] ^= 1;
                let outcome = store.load(&damaged[..], policy, &mut |_| {});
                let is_refused = matches!(outcome, Err(Error::Dump { .. } | Error::TreeExists(_)));
                assert!(is_refused, "{outcome:?}");
                let outcome = store.load(&dump[..at], policy, &mut |_| {});
                assert!(matches!(outcome, Err(Error::Dump { .. } | Error::TreeExists(_))), "{outcome:?}");
            }
            assert_eq!(content(&store).unwrap(), before);
            assert!(is_sound(&store));
            let snapshot = store.read().unwrap();
            let outcome = store.load(&dump[..], policy, &mut |_| {});
            assert!(matches!(outcome, Err(Error::Busy | Error::TreeExists(_))), "{outcome:?}");
            drop(snapshot);
            let outcome = store.load(&dump[..], policy, &mut |_| {});
            let mut after = before.clone();
            if policy == LoadPolicy::Refuse {
                assert!(matches!(outcome, Err(Error::TreeExists(name)) if name == "b"));
            } else {
                after = loaded(&before, &model, policy);
                let records: usize = model.values().map(|records| records.len()).sum();
                let done = outcome.unwrap();
                assert_eq!((done.trees, done.records, done.bytes), (4, records as u64, dump.len() as u64));
                let is_gone = matches!(store.read().unwrap().get(&old, b"x"), Err(Error::NoSuchTree(_)));
                assert_eq!(is_gone, policy == LoadPolicy::Replace);
            }
            assert_eq!(content(&store).unwrap(), after);
            assert!(is_sound(&store));
            // It is durable with every durability setting.
            std::mem::forget(store);
            drop(lock);
            devices.crash();
            let store = open(&devices);
            assert_eq!(content(&store).unwrap(), after);
            assert!(is_sound(&store));
            // Later ids follow those of the load.
            let tree = store.create_tree("later").unwrap();
            store.update(|transaction| transaction.put(&tree, b"k", b"v")).unwrap();
            drop(store);
            let store = open(&devices);
            assert_eq!(content(&store).unwrap()["later"].len(), 1);
        }
    }
}

#[test]
fn a_power_failure_at_any_write_leaves_the_store_as_before_or_as_after() {
    let (dump, model) = dump();
    let mut outcomes = [0; 2];
    let mut crash = |seed: u64, arm: &dyn Fn(&Devices)| {
        let devices = Devices::new(seed);
        let (lock, store) = existing(&devices, Durability::Sync);
        let before = content(&store).unwrap();
        arm(&devices);
        let done = store.load(&dump[..], LoadPolicy::Replace, &mut |_| {}).is_ok();
        std::mem::forget(store);
        drop(lock);
        devices.crash();
        let store = open(&devices);
        let (found, after) = (content(&store).unwrap(), loaded(&before, &model, LoadPolicy::Replace));
        assert!(found == after || !done && found == before, "seed {seed}: a part of the dump");
        assert!(is_sound(&store));
        outcomes[usize::from(found == after)] += 1;
        done
    };
    let mut operation = 1;
    while !crash(operation, &|devices| devices.log.fuse(operation)) {
        operation += 1 + operation / 8;
    }
    let mut pages = 1;
    while !crash(pages, &|devices| devices.pages.fuse(pages)) {
        pages += 1 + pages / 6;
    }
    assert!(outcomes[0] > 20 && outcomes[1] > 0, "{outcomes:?}");
}

#[test]
fn without_space_a_load_changes_nothing() {
    let (dump, model) = dump();
    let devices = Devices::new(1);
    let (_lock, store) = existing(&devices, Durability::Sync);
    devices.log.limit(devices.log.takes());
    // The store uses reserved space first.
    let mut before = content(&store).unwrap();
    let outcome = (0..100).find_map(|_| {
        before = content(&store).unwrap();
        store.load(&dump[..], LoadPolicy::Replace, &mut |_| {}).err()
    });
    assert!(matches!(outcome, Some(Error::NoSpace(_))), "{outcome:?}");
    assert_eq!(content(&store).unwrap(), before);
    assert!(is_sound(&store));
    devices.log.limit(u64::MAX);
    store.load(&dump[..], LoadPolicy::Replace, &mut |_| {}).unwrap();
    assert_eq!(content(&store).unwrap(), loaded(&before, &model, LoadPolicy::Replace));
}
