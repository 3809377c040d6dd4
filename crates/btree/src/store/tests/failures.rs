//! Devices that fail without losing power.

use super::devices::Devices;
use super::{builder, content};
use crate::store::{Durability, Error, MAX_TRANSACTION_BYTES, Store};

fn put(store: &Store, key: &[u8], value: &[u8]) -> super::Result<()> {
    let tree = store.tree("a")?;
    store.update(|transaction| transaction.put(&tree, key, value))
}

#[test]
fn a_failed_write_of_the_log_makes_the_store_refuse_everything_until_it_is_opened_again() {
    for error in [libc::EIO, libc::ENOSPC] {
        let lock = tempfile::tempdir().unwrap();
        let devices = Devices::new(1);
        let store = builder(lock.path(), &devices, Durability::Sync).open().unwrap();
        store.create_tree("a").unwrap();
        put(&store, b"committed", b"1").unwrap();
        devices.log.fail(Some(error));
        assert!(matches!(put(&store, b"in doubt", b"2"), Err(Error::Log(_))));
        devices.log.fail(None);
        assert!(matches!(put(&store, b"refused", b"3"), Err(Error::Poisoned)));
        assert!(matches!(store.read().err(), Some(Error::Poisoned)));
        assert!(matches!(store.checkpoint(), Err(Error::Poisoned)));
        assert!(matches!(store.create_tree("b"), Err(Error::Poisoned)));
        drop(store);
        let store = builder(lock.path(), &devices, Durability::Sync).open().unwrap();
        let seen = content(&store).unwrap();
        assert_eq!(seen["a"][&b"committed"[..]], b"1");
        assert!(!seen["a"].contains_key(&b"refused"[..]));
        // The bytes of the failed sync were readable, and recovery made them durable before it used them.
        drop(store);
        devices.crash();
        let store = builder(lock.path(), &devices, Durability::Sync).open().unwrap();
        assert_eq!(content(&store).unwrap(), seen);
    }
}

#[test]
fn a_read_that_fails_while_a_commit_is_applied_poisons_the_store_and_recovery_completes_it() {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(2);
    let store = builder(lock.path(), &devices, Durability::Sync).open().unwrap();
    store.create_tree("a").unwrap();
    for n in 0..400u64 {
        put(&store, &n.to_be_bytes(), &[1; 900]).unwrap();
    }
    let (mut ordinary, mut interrupted) = (0, 0);
    let mut store = Some(store);
    for round in 0..60u64 {
        let open = store.as_ref().unwrap();
        let before = content(open).unwrap();
        let tree = open.tree("a").unwrap();
        let mut transaction = open.write().unwrap();
        for n in 0..60 {
            transaction.put(&tree, &(n * 6 + round % 5).to_be_bytes(), &[round as u8; 1000]).unwrap();
        }
        devices.pages.fail(10_000, 10_000, 0);
        let done = transaction.commit();
        devices.pages.fail(0, 0, 0);
        match done {
            Ok(()) => {}
            Err(Error::Interrupted(_)) => {
                interrupted += 1;
                assert!(matches!(put(open, b"x", b"y"), Err(Error::Poisoned)));
                drop(store.take());
                devices.crash();
                let again = builder(lock.path(), &devices, Durability::Sync).open().unwrap();
                let after = content(&again).unwrap();
                let complete =
                    (0..60).all(|n| after["a"][&(n * 6 + round % 5).to_be_bytes()[..]][0] == round as u8);
                assert!(complete || after == before, "all or nothing");
                store = Some(again);
            }
            Err(_) => {
                ordinary += 1;
                assert_eq!(content(open).unwrap(), before);
            }
        }
    }
    assert!(ordinary > 0 && interrupted > 0, "{ordinary} {interrupted}");
}

#[test]
fn a_full_pool_is_an_ordinary_error() {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(3);
    let open = || builder(lock.path(), &devices, Durability::Sync).capacity(3 << 20).open().unwrap();
    let store = open();
    store.create_tree("a").unwrap();
    let mut count = 0u64;
    let full = loop {
        match put(&store, &count.to_be_bytes(), &[7; 20_000]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    let is_full = |error: &Error| {
        matches!(error, Error::Tree(crate::Error::Pool(bedplate_bufpool::Error::Full { .. })))
    };
    assert!(is_full(&full), "{full}");
    assert!(count > 20, "{count}");
    let before = content(&store).unwrap();
    assert_eq!(before["a"].len() as u64, count);
    // A removal makes room.
    let tree = store.tree("a").unwrap();
    store.update(|transaction| transaction.remove_range::<&[u8]>(&tree, ..)).unwrap();
    put(&store, b"again", &[1; 20_000]).unwrap();
    drop(store);
    let store = open();
    assert_eq!(content(&store).unwrap()["a"].len(), 1);
}

#[test]
fn replaced_values_count_for_the_size_of_a_transaction() {
    let lock = tempfile::tempdir().unwrap();
    let store = Store::builder(lock.path()).durability(Durability::Async).open().unwrap();
    let tree = store.create_tree("a").unwrap();
    let value = vec![1; 16 << 20];
    for n in 0..5u8 {
        store.update(|transaction| transaction.put(&tree, &[n], &value)).unwrap();
    }
    assert_eq!(5 * value.len(), MAX_TRANSACTION_BYTES + value.len());
    let removed = store.update(|transaction| transaction.remove_range::<&[u8]>(&tree, ..));
    assert!(matches!(removed, Err(Error::TransactionTooLarge)));
    // Three values and their keys are within the limit; four and their keys are not.
    store.update(|transaction| transaction.remove_range(&tree, [0]..[3])).unwrap();
    assert_eq!(store.read().unwrap().range::<&[u8]>(&tree, ..).unwrap().count(), 2);
}
