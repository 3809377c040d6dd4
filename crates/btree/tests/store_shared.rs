//! Transactions that own a share of their store, and stores that are opened only if they exist.

use std::sync::Arc;

use bedplate_btree::store::{Error, Store, UPDATE_ATTEMPTS, WriteTransaction, prefix_range};
use bedplate_bufpool::{Choice, Kind};
use tempfile::TempDir;

fn open(directory: &TempDir) -> Arc<Store> {
    Arc::new(Store::builder(directory.path()).memory(64 * 4096).capacity(64 << 20).open().unwrap())
}

#[test]
fn a_transaction_that_owns_a_share_keeps_its_store_open() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let tree = store.create_tree("t").unwrap();
    store.update(|transaction| transaction.put(&tree, b"k", b"old")).unwrap();
    let snapshot = store.read_shared().unwrap();
    let mut transaction = store.write_shared().unwrap();
    let thread = {
        let tree = tree.clone();
        std::thread::spawn(move || {
            transaction.put(&tree, b"k", b"new").unwrap();
            transaction.commit()
        })
    };
    thread.join().unwrap().unwrap();
    drop(store);
    assert!(matches!(Store::builder(directory.path()).open(), Err(Error::InUse(_))));
    assert_eq!(snapshot.get(&tree, b"k").unwrap().unwrap(), b"old");
    let mut records = snapshot.range::<&[u8]>(&tree, ..).unwrap();
    assert_eq!(records.next().unwrap().unwrap(), (b"k".to_vec(), b"old".to_vec()));
    drop(records);
    drop(snapshot);
    let store = open(&directory);
    let tree = store.tree("t").unwrap();
    assert_eq!(store.read().unwrap().get(&tree, b"k").unwrap().unwrap(), b"new");
}

/// Another transaction changes a key that each attempt has read. It does not do so during the last attempt.
#[test]
fn an_update_with_shared_transactions_comes_to_an_end_or_is_undone() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let tree = store.create_tree("t").unwrap();
    let mut attempts = 0;
    let committed = store
        .update_shared(|mut transaction: WriteTransaction<'static>| {
            transaction.get(&tree, b"read")?;
            attempts += 1;
            if attempts <= UPDATE_ATTEMPTS {
                let mut other = store.write_shared()?;
                other.put(&tree, b"read", &attempts.to_le_bytes())?;
                other.commit()?;
            }
            transaction.put(&tree, b"written", b"")?;
            Ok(Some(transaction))
        })
        .unwrap();
    assert!(committed);
    assert_eq!(attempts, UPDATE_ATTEMPTS + 1);
    assert_eq!(store.statistics().conflicts, u64::from(UPDATE_ATTEMPTS));
    let undone = store.update_shared(|mut transaction| {
        transaction.put(&tree, b"undone", b"")?;
        Ok(None)
    });
    assert!(!undone.unwrap());
    let snapshot = store.read().unwrap();
    assert!(snapshot.contains(&tree, b"written").unwrap() && !snapshot.contains(&tree, b"undone").unwrap());
}

#[test]
fn a_store_that_is_not_to_be_created_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let builder = || Store::builder(&path).memory(64 * 4096).capacity(64 << 20);
    let refused = builder().create_if_missing(false).open().err().unwrap();
    assert!(matches!(refused, Error::NoStore(_)), "{refused}");
    assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
    assert!(!path.exists());
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("notes"), "").unwrap();
    assert!(matches!(builder().create_if_missing(false).open(), Err(Error::NoStore(_))));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "nothing is created");
    builder().open().unwrap().close().unwrap();
    builder().create_if_missing(false).open().unwrap().close().unwrap();
    // A store without its pages is damaged, not absent.
    std::fs::remove_file(path.join("pages")).unwrap();
    assert!(matches!(builder().create_if_missing(false).open(), Err(Error::Missing(_))));
    // A file at the path of the directory causes another error than a missing store.
    let file = path.join("notes");
    assert!(matches!(Store::builder(&file).create_if_missing(false).open(), Err(Error::Directory { .. })));
}

#[test]
fn the_engine_of_a_store_can_be_chosen() {
    let kinds = [
        Kind::Array,
        Kind::Stock,
        #[cfg(feature = "bench")]
        Kind::Vmcache,
        Kind::Hashtable,
    ];
    for kind in kinds {
        let directory = tempfile::tempdir().unwrap();
        let builder = Store::builder(directory.path()).memory(64 * 4096).capacity(64 << 20);
        let store = builder.engine(Choice::Only(kind)).open().unwrap();
        assert_eq!(store.engine(), kind);
        let tree = store.create_tree("t").unwrap();
        store.update(|transaction| transaction.put(&tree, b"k", b"v")).unwrap();
        assert_eq!(store.read().unwrap().get(&tree, b"k").unwrap().unwrap(), b"v");
        store.close().unwrap();
    }
}

#[test]
fn the_range_of_a_prefix_has_all_keys_that_begin_with_it() {
    use std::ops::RangeBounds;

    for (prefix, inside, outside) in [
        (&b"ab"[..], &[&b"ab"[..], b"ab\0", b"ab\xff\xff"][..], &[&b"aa\xff"[..], b"ac", b"a"][..]),
        (b"a\xff", &[b"a\xff", b"a\xff\xff"], &[b"b", b"a\xfe\xff"]),
        (b"\xff\xff", &[b"\xff\xff", b"\xff\xff\xff"], &[b"\xff", b"\xff\xfe"]),
        (b"", &[b"", b"\xff"], &[]),
    ] {
        let range = prefix_range(prefix);
        let has = |key: &&[u8]| range.contains(&key.to_vec());
        assert!(inside.iter().all(has), "{prefix:?}");
        assert!(!outside.iter().any(has), "{prefix:?}");
    }
}
