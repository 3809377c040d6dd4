//! Stores with pages of other sizes than 4 KiB: all operations, with keys up to the limit of each size.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use bedplate_btree::store::{Builder, Error, LoadPolicy, NamedTree, Store};
use bedplate_btree::{LONGEST_KEY, max_key, max_record};
use bedplate_bufpool::PageSize;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn builder(folder: &Path, size: PageSize) -> Builder {
    Store::builder(folder).memory(32 * size.bytes()).capacity(1 << 30).engine(common::engine())
}

fn create(folder: &Path, size: PageSize) -> Store {
    builder(folder, size).page_size(size.bytes()).open().unwrap()
}

/// Records with keys and values of all lengths: up to the limits, and values beyond the limit of a leaf.
fn records(size: PageSize, count: u64) -> Model {
    let record = |n: u64| {
        let random = common::mixed(n);
        let len = [8, 20, max_key(size) / 2, max_key(size)][(random % 4) as usize];
        let key = [&random.to_be_bytes()[..], &vec![n as u8; len - 8]].concat();
        let len = [0, 100, 1000, max_record(size), 2 * size.bytes()][(random >> 8) as usize % 5];
        (key, vec![n as u8; len])
    };
    (0..count).map(record).collect()
}

fn put(store: &Store, tree: &NamedTree, records: &Model) {
    let records: Vec<_> = records.iter().collect();
    for some in records.chunks(20) {
        store
            .update(|transaction| some.iter().try_for_each(|(key, value)| transaction.put(tree, key, value)))
            .unwrap();
    }
}

fn content(store: &Store) -> Model {
    let tree = store.tree("t").unwrap();
    store.read().unwrap().range::<&[u8]>(&tree, ..).unwrap().map(Result::unwrap).collect()
}

fn is_sound(folder: &Path) {
    let verified = Store::verify(folder, &mut |_| {}).unwrap();
    assert_eq!(verified.damages, []);
}

#[test]
fn a_store_of_any_page_size_is_recovered_backed_up_dumped_and_compacted() {
    for size in common::page_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let store = create(&at("store"), size);
        assert_eq!((store.page_size(), store.max_key()), (size, max_key(size)));
        let tree = store.create_tree("t").unwrap();
        let mut model = records(size, 400);
        put(&store, &tree, &model);
        assert!(content(&store) == model);
        // The store is dropped and not closed, so it is recovered. The builder does not set a size.
        drop((tree, store));
        let store = builder(&at("store"), size).open().unwrap();
        assert_eq!(store.page_size(), size);
        assert!(content(&store) == model);
        let removed: Vec<Vec<u8>> = model.keys().step_by(3).cloned().collect();
        let tree = store.tree("t").unwrap();
        for key in removed {
            assert!(store.update(|transaction| transaction.remove(&tree, &key)).unwrap());
            model.remove(&key);
        }
        store.backup(at("backup"), &mut |_| {}).unwrap();
        let mut dump = Vec::new();
        store.dump(&mut dump, &mut |_| {}).unwrap();
        drop((tree, store));
        // Verification recovers the store beside its files.
        is_sound(&at("store"));
        is_sound(&at("backup"));
        let copy = builder(&at("backup"), size).page_size(size.bytes()).open().unwrap();
        assert_eq!(copy.page_size(), size);
        assert!(content(&copy) == model);
        copy.close().unwrap();

        let compacted = builder(&at("store"), size).compact(&mut |_| true, &mut |_| {}).unwrap().unwrap();
        assert!(compacted.bytes_after.is_multiple_of(size.bytes() as u64));
        is_sound(&at("store"));
        let store = builder(&at("store"), size).open().unwrap();
        assert_eq!((store.page_size(), store.space().bytes), (size, compacted.bytes_after));
        assert!(content(&store) == model);

        // A dump does not depend on the page size, except that the keys must fit.
        let other = create(&at("other"), PageSize::MAX.min(*common::page_sizes().last().unwrap()));
        other.load(&dump[..], LoadPolicy::Refuse, &mut |_| {}).unwrap();
        assert!(content(&other) == model);
        let small = create(&at("small"), PageSize::MIN);
        let loaded = small.load(&dump[..], LoadPolicy::Refuse, &mut |_| {});
        if size == PageSize::MIN {
            loaded.unwrap();
        } else {
            assert!(matches!(loaded, Err(Error::Tree(bedplate_btree::Error::KeyTooLong { max: 512, .. }))));
            assert_eq!(small.trees(), Vec::<String>::new());
        }
    }
}

#[test]
fn the_limit_of_keys_of_a_transaction_follows_the_page_size() {
    for size in common::page_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let store = create(folder.path(), size);
        let tree = store.create_tree("t").unwrap();
        let mut transaction = store.write().unwrap();
        let long = vec![1; max_key(size) + 1];
        for refused in [transaction.put(&tree, &long, b""), transaction.insert(&tree, &long, b"").map(drop)] {
            let Err(Error::Tree(bedplate_btree::Error::KeyTooLong { len, max })) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!((len, max), (long.len(), max_key(size)));
        }
        for absent in [&long, &vec![1; LONGEST_KEY + 1]] {
            assert!(
                !transaction.remove(&tree, absent).unwrap()
                    && transaction.get(&tree, absent).unwrap().is_none()
            );
        }
        transaction.put(&tree, &long[1..], b"longest key").unwrap();
        transaction.commit().unwrap();
        assert_eq!(store.read().unwrap().get(&tree, &long[1..]).unwrap().unwrap(), b"longest key");
    }
}

#[test]
fn another_size_than_the_stores_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    create(folder.path(), PageSize::MIN).close().unwrap();
    for bytes in [8192, 65536, 5000] {
        let refused =
            Store::builder(folder.path()).page_size(bytes).open().map(drop).unwrap_err().to_string();
        let expected = if bytes == 5000 { "power of two" } else { "created with pages of 4 KiB" };
        assert!(refused.contains(expected) && !refused.contains('\n'), "{refused}");
    }
    create(folder.path(), PageSize::MIN).close().unwrap();
}
