//! A store whose log lost its end, because the disk lost durable bytes, or because an older copy of the log replaced it.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bedplate_btree::store::{Error, Store};
use bedplate_bufpool::{Error as PoolError, PAGE};

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn open(folder: &Path) -> Result<Store, Error> {
    Store::builder(folder).memory(64 * PAGE).capacity(64 << 20).engine(common::engine()).open()
}

/// Commits records with values of this byte.
fn put(store: &Store, records: std::ops::Range<u64>, byte: u8) {
    let tree = store.tree("t").unwrap();
    for n in records {
        store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &[byte; 300])).unwrap();
    }
}

fn content(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Files {
    let paths = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let wanted = paths.filter(|path| is_wanted(path.file_name().unwrap().to_str().unwrap()));
    wanted.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn log(folder: &Path) -> Files {
    content(folder, |name| name.starts_with("log."))
}

/// Replaces the files of the log by others.
fn replace_log(folder: &Path, files: &Files) {
    log(folder).keys().for_each(|path| std::fs::remove_file(path).unwrap());
    files.iter().for_each(|(path, content)| std::fs::write(path, content).unwrap());
}

fn is_log_too_short(error: &Error) -> bool {
    matches!(
        error,
        Error::Tree(bedplate_btree::Error::Pool(
            PoolError::LogTooShort { .. } | PoolError::PageAheadOfLog { .. }
        ))
    )
}

/// The older log ends before the last checkpoint, so the superblock shows the loss.
#[test]
fn an_older_log_is_refused_and_nothing_changes() {
    for is_closed in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let store = open(folder).unwrap();
        store.create_tree("t").unwrap();
        put(&store, 0..50, 1);
        let mut older = log(folder);
        put(&store, 0..100, 2);
        store.checkpoint().unwrap();
        if is_closed {
            store.close().unwrap();
        } else {
            drop(store);
        }
        let newest = log(folder);
        // The older log also has a torn end, which opening the log would cut off.
        older.values_mut().last().unwrap().extend([7; 100]);
        replace_log(folder, &older);
        let before = content(folder, |_| true);
        let refused = open(folder).err().unwrap();
        assert!(is_log_too_short(&refused), "{refused}");
        let verified = Store::verify(folder, &mut |_| {}).unwrap();
        assert!(verified.damages.iter().any(|damage| damage.what.contains("the log has lost its end")));
        assert!(content(folder, |_| true) == before);

        replace_log(folder, &newest);
        let store = open(folder).unwrap();
        let tree = store.tree("t").unwrap();
        let read = store.read().unwrap();
        assert_eq!(read.get(&tree, &99u64.to_be_bytes()).unwrap(), Some(vec![2; 300]));
        drop(read);
        store.close().unwrap();
        assert_eq!(Store::verify(folder, &mut |_| {}).unwrap().damages, []);
    }
}

/// The older log has the last checkpoint. So only the pages that have left the small memory since then show the loss.
#[test]
fn an_older_log_with_the_last_checkpoint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = open(folder).unwrap();
    store.create_tree("t").unwrap();
    put(&store, 0..2000, 1);
    store.checkpoint().unwrap();
    put(&store, 0..10, 2);
    let older = log(folder);
    put(&store, 0..2000, 3);
    drop(store);
    let newest = log(folder);
    replace_log(folder, &older);
    let refused = open(folder).err().unwrap();
    assert!(is_log_too_short(&refused), "{refused}");
    replace_log(folder, &newest);
    let store = open(folder).unwrap();
    let tree = store.tree("t").unwrap();
    let records: Vec<_> =
        store.read().unwrap().range::<&[u8]>(&tree, ..).unwrap().map(Result::unwrap).collect();
    assert_eq!(records.len(), 2000);
    assert!(records.iter().all(|(_, value)| *value == [3; 300]));
}
