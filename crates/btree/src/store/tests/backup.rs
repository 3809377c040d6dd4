//! Backups on devices that fail and lose power: the result is no copy, or a complete one.

use super::devices::{Devices, NewDevices};
use super::{Model, builder, content};
use crate::store::site::StoreSite;
use crate::store::{Durability, Error, Progress, Store};

fn put(store: &Store, n: u64, byte: u8) {
    let tree = store.tree("a").unwrap();
    let key = (n * 37 % 300).to_be_bytes();
    let value = vec![byte; [10, 700, 1400, 6000][(n % 4) as usize]];
    store.update(|transaction| transaction.put(&tree, &key, &value)).unwrap();
}

/// A store that has more pages than memory has room for.
fn store(devices: &Devices, lock: &std::path::Path) -> Store {
    let store = builder(lock, devices, Durability::Sync).open().unwrap();
    store.create_tree("a").unwrap();
    (0..300).for_each(|n| put(&store, n, 1));
    store
}

fn open(devices: &Devices) -> Store {
    let lock = tempfile::tempdir().unwrap();
    builder(lock.path(), devices, Durability::Sync).open().unwrap()
}

/// Backs a store up to devices that lose power as `arm` sets. The store changes at each page, and makes checkpoints.
fn back_up(store: &Store, seed: u64, arm: impl FnOnce(&Devices)) -> (NewDevices, bool, Vec<Model>) {
    let mut target = NewDevices::new(seed);
    arm(&target.devices);
    let mut states = vec![content(store).unwrap()];
    let mut n = 0;
    let mut change = |_: Progress| {
        n += 1;
        put(store, n * 7 + seed, n as u8);
        if n % 3 == 0 {
            store.checkpoint().unwrap();
        }
        states.push(content(store).unwrap());
    };
    let done = store.backup_to(&mut target, &mut change).is_ok();
    assert_eq!(done, target.is_published);
    // Everything that is not durable is lost.
    target.devices.crash();
    (target, done, states)
}

#[test]
fn a_backup_that_was_published_is_whole_after_a_power_failure() {
    let (lock, devices) = (tempfile::tempdir().unwrap(), Devices::new(1));
    let store = store(&devices, lock.path());
    for seed in 1..4 {
        let (target, done, states) = back_up(&store, seed, |_| {});
        assert!(done && states.len() > 3);
        let copy = open(&target.devices);
        assert_eq!(content(&copy).unwrap(), *states.last().unwrap(), "all commits before the end");
        // It works as a store of its own.
        (0..50).for_each(|n| put(&copy, n, 9));
        let after = content(&copy).unwrap();
        drop(copy);
        target.devices.crash();
        assert_eq!(content(&open(&target.devices)).unwrap(), after);
    }
}

#[test]
fn a_power_failure_at_any_write_of_a_backup_leaves_none_and_the_store_goes_on() {
    let (lock, devices) = (tempfile::tempdir().unwrap(), Devices::new(1));
    let store = store(&devices, lock.path());
    let (mut failed, mut pages) = (0, 1);
    loop {
        let (target, done, _) = back_up(&store, pages, |devices| devices.pages.fuse(pages));
        if done {
            // The fuse is longer than the backup.
            drop(open(&target.devices));
            break;
        }
        failed += 1;
        pages += 1 + pages / 16;
    }
    assert!(failed > 20, "{failed}");
    let mut operation = 1;
    while !back_up(&store, operation, |devices| devices.log.fuse(operation)).1 {
        operation += 1;
    }
    assert!(operation > 2, "a segment, and publishing");
    let (_, done, _) = back_up(&store, 1, |devices| devices.pages.fail(0, 0, 1_000_000));
    assert!(!done, "a sync that fails is an error");
    // No hold on the log remains.
    let before = store.log.end();
    store.checkpoint().unwrap();
    drop(store);
    assert!(open(&devices).log.end() > before);
}

#[test]
fn damage_of_the_source_is_an_error_and_is_not_copied() {
    let (lock, devices) = (tempfile::tempdir().unwrap(), Devices::new(1));
    let source = store(&devices, lock.path());
    source.checkpoint().unwrap();
    let pages = source.pool.pages();
    let mut refused = 0;
    for page in pages {
        devices.pages.damage(page);
        let mut target = NewDevices::new(page);
        let done = source.backup_to(&mut target, &mut |_| {});
        // Flips the bit back.
        devices.pages.damage(page);
        match done {
            Err(Error::Tree(crate::Error::Pool(bedplate_bufpool::Error::Damaged {
                page: found, ..
            }))) => {
                assert_eq!(found.0, page);
                assert!(!target.is_published);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
            // Memory has the intact page.
            Ok(_) => assert_eq!(content(&open(&target.devices)).unwrap(), content(&source).unwrap()),
        }
    }
    assert!(refused > 50, "{refused}");
    // A failed read is not damage, and the store continues.
    devices.pages.fail(100_000, 0, 0);
    let done = source.backup_to(&mut NewDevices::new(1), &mut |_| {});
    devices.pages.fail(0, 0, 0);
    assert!(done.is_err());
    put(&source, 1, 1);
}

#[test]
fn segments_are_held_for_a_backup_and_removed_after_it() {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(1);
    let store = store(&devices, lock.path());
    let tree = store.tree("a").unwrap();
    let mut target = NewDevices::new(1);
    let mut most = 0;
    let mut change = |progress: Progress| {
        if progress.done == 0 {
            // The log has more than two segments.
            for n in 0..40u8 {
                store.update(|transaction| transaction.put(&tree, b"long", &vec![n; 1 << 20])).unwrap();
            }
            store.checkpoint().unwrap();
            most = most.max(devices.log.takes());
        }
    };
    let backup = store.backup_to(&mut target, &mut change).unwrap();
    assert!(backup.log_bytes > 32 << 20 && most > 32 << 20, "{backup:?} {most}");
    store.checkpoint().unwrap();
    assert!(devices.log.takes() < most, "{}", devices.log.takes());
    target.devices.crash();
    assert!(target.log().list().unwrap().len() > 1);
    assert_eq!(content(&open(&target.devices)).unwrap(), content(&store).unwrap());
}
