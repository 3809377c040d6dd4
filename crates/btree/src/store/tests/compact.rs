//! Compaction on devices that fail and lose power: afterwards the old store exists, or the new one.

use super::devices::{Devices, NewDevices};
use super::{Model, builder, content};
use crate::store::{Builder, Durability, Store, Verification};

/// A store that has many more pages than it needs.
fn source(devices: &Devices) -> Model {
    let lock = tempfile::tempdir().unwrap();
    let store = builder(lock.path(), devices, Durability::Sync).open().unwrap();
    for name in ["a", "b", "c"] {
        let tree = store.create_tree(name).unwrap();
        for n in 0..120u64 {
            let value = vec![n as u8; [0, 300, 1400, 9000][(n % 4) as usize]];
            store
                .update(|transaction| transaction.put(&tree, &(n * 37 % 120).to_be_bytes(), &value))
                .unwrap();
        }
        store
            .update(|transaction| transaction.remove_range(&tree, 40u64.to_be_bytes()..100u64.to_be_bytes()))
            .unwrap();
    }
    store.drop_tree("b").unwrap();
    content(&store).unwrap()
}

fn on(lock: &tempfile::TempDir, devices: &Devices) -> Builder {
    // A store exists if its directory has pages.
    std::fs::write(lock.path().join("pages"), "").unwrap();
    builder(lock.path(), devices, Durability::Sync)
}

fn open(devices: &Devices) -> Store {
    let lock = tempfile::tempdir().unwrap();
    builder(lock.path(), devices, Durability::Sync).open().unwrap()
}

/// Compacts on devices that fail as `arm` sets, and compares the content. Returns whether the new pages are in place.
fn compact(seed: u64, arm: impl FnOnce(&Devices, &Devices)) -> bool {
    let devices = Devices::new(seed);
    let model = source(&devices);
    let before = open(&devices).pool.pages().count();
    devices.crash();
    let mut new = NewDevices::new(seed);
    arm(&devices, &new.devices);
    let lock = tempfile::tempdir().unwrap();
    let outcome = on(&lock, &devices).compact_to(&mut new, &mut |_| true, &mut |_| {});
    assert_eq!(outcome.is_ok(), new.is_published, "{outcome:?}");
    devices.pages.fail(0, 0, 0);
    devices.crash();
    new.devices.crash();
    let is_new = new.is_published;
    let found =
        if is_new { Devices { pages: new.devices.pages.clone(), log: devices.log.clone() } } else { devices };
    let store = open(&found);
    assert_eq!(content(&store).unwrap(), model, "seed {seed}, {outcome:?}");
    if is_new {
        let after = store.pool.pages().count();
        assert!(after * 3 < before * 2, "{after} of {before}");
        assert_eq!(outcome.unwrap().unwrap().bytes_after, store.pool.pages().end * 4096);
    }
    // The store continues, even through a crash.
    let tree = store.tree("a").unwrap();
    for n in 0..200u64 {
        store.update(|transaction| transaction.put(&tree, &(n * 31 % 97).to_be_bytes(), &[7; 1200])).unwrap();
    }
    let model = content(&store).unwrap();
    drop(store);
    found.crash();
    assert_eq!(content(&open(&found)).unwrap(), model);
    is_new
}

#[test]
fn a_power_failure_at_any_write_leaves_the_old_store_or_the_new_one() {
    assert!(compact(1, |_, _| {}));
    let mut failed = 0;
    for which in 0..2 {
        let mut pages = 1;
        while !compact(
            pages,
            |old, new| if which == 0 { old.pages.fuse(pages) } else { new.pages.fuse(pages) },
        ) {
            pages += 1 + pages / 8;
            failed += 1;
        }
    }
    assert!(failed > 15, "{failed}");
    let mut operation = 1;
    while !compact(operation, |old, _| old.log.fuse(operation)) {
        operation += 1;
    }
    assert!(operation > 3, "{operation}");
    assert!(!compact(1, |_, new| new.pages.fail(0, 0, 1_000_000)), "a failed sync");
    assert!(!compact(1, |_, new| new.log.fuse(1)), "publishing fails");
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_and_the_old_store_stays() {
    let failed = (1..12).filter(|seed| !compact(*seed, |old, _| old.pages.fail(10_000, 0, 0))).count();
    assert!(failed > 2, "{failed}");
}

#[test]
fn in_a_directory_the_files_shrink_and_the_space_is_said_beforehand() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || Store::builder(folder.path()).memory(1 << 20).capacity(1 << 30);
    let store = builder().open().unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..2000u64 {
        store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &[1; 10_000])).unwrap();
    }
    store.update(|transaction| transaction.remove_range(&tree, 10u64.to_be_bytes()..)).unwrap();
    let model = content(&store).unwrap();
    store.close().unwrap();
    let size = || std::fs::metadata(folder.path().join("pages")).unwrap().len();
    let before = size();
    let said_no = builder().compact(&mut |_| false, &mut |_| {}).unwrap();
    assert!(said_no.is_none() && size() == before);
    let mut plan = None;
    let done =
        builder().compact(&mut |planned| plan.replace(*planned).is_none(), &mut |_| {}).unwrap().unwrap();
    let plan = plan.unwrap();
    assert!(size() <= plan.bytes_after && done.bytes_after <= plan.bytes_after, "{plan:?} {done:?}");
    assert!(size() * 5 < before && done.bytes_before > 20_000_000 && done.records == 10, "{done:?}");
    let found: Verification = Store::verify(folder.path(), &mut |_| {}).unwrap();
    assert_eq!(found.damages, []);
    assert!(!folder.path().join("pages.new").exists());
    let store = builder().open().unwrap();
    assert_eq!(content(&store).unwrap(), model);
    // The pages that another process makes stay.
    std::fs::write(folder.path().join("pages.new"), "").unwrap();
    let refused = builder().compact(&mut |_| true, &mut |_| {});
    assert!(matches!(refused, Err(crate::store::Error::InUse(_))));
    assert!(folder.path().join("pages.new").exists());
    drop(store);
    let none = folder.path().join("none");
    let missing = Store::builder(&none).compact(&mut |_| true, &mut |_| {});
    assert!(matches!(missing, Err(crate::store::Error::NoStore(_))) && !none.exists());
}
