//! The directories in which a store, or a copy of one, is made or expected.

#[path = "common/small_disk.rs"]
mod small_disk;

use bedplate_btree::store::{Error, Store};
use small_disk::SmallDisk;

#[test]
fn a_directory_that_cannot_be_searched_is_not_one_without_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let opened = Store::builder(&file).create_if_missing(false).open();
    assert!(matches!(opened, Err(Error::Directory { .. })), "{:?}", opened.err());
    let verified = Store::verify(&file, &mut |_| {});
    assert!(matches!(verified, Err(Error::Directory { .. })), "{verified:?}");
    let opened = Store::builder(folder.path().join("none")).create_if_missing(false).open();
    assert!(matches!(opened, Err(Error::NoStore(_))));
}

#[test]
fn a_backup_to_a_mount_point_is_refused_before_anything_is_copied() {
    let Some(disk) = SmallDisk::mount(16) else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::builder(folder.path().join("store")).memory(1 << 20).open().unwrap();
    let mut calls = 0;
    let refused = store.backup(disk.path(), &mut |_| calls += 1).unwrap_err();
    assert!(refused.to_string().contains("mount point"), "{refused}");
    assert_eq!(calls, 0);
    store.backup(disk.path().join("copy"), &mut |_| {}).unwrap();
}

#[test]
fn a_store_without_its_log_is_refused_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Store::builder(folder.path()).memory(1 << 20).open();
    let store = open().unwrap();
    store.create_tree("t").unwrap();
    store.close().unwrap();
    std::fs::remove_file(folder.path().join("log.00000000")).unwrap();
    for attempt in 1..=3 {
        let opened = open();
        assert!(matches!(opened, Err(Error::Missing(_))), "attempt {attempt}: {:?}", opened.err());
    }
    let found = Store::verify(folder.path(), &mut |_| {}).unwrap();
    assert!(!found.is_sound());
}

#[test]
fn a_store_whose_creation_was_interrupted_is_none_yet() {
    let folder = tempfile::tempdir().unwrap();
    // The log is made first. Then the pages cannot be made.
    let pages = folder.path().join("pages");
    std::os::unix::fs::symlink(folder.path().join("missing").join("pages"), &pages).unwrap();
    assert!(Store::builder(folder.path()).memory(1 << 20).open().is_err());
    std::fs::remove_file(&pages).unwrap();
    assert!(folder.path().join("log.00000000").exists());
    let verified = Store::verify(folder.path(), &mut |_| {});
    assert!(matches!(verified, Err(Error::NoStore(_))), "{verified:?}");
    Store::builder(folder.path()).memory(1 << 20).open().unwrap().close().unwrap();
    assert!(Store::verify(folder.path(), &mut |_| {}).unwrap().is_sound());
}
