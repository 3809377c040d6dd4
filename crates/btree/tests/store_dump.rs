//! A dump of random stores makes equal stores.

use std::collections::BTreeMap;

use bedplate_btree::store::{Error, LoadPolicy, Store};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

type Model = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn content(store: &Store) -> Model {
    let snapshot = store.read().unwrap();
    let records = |name: &String| {
        let tree = store.tree(name).unwrap();
        snapshot.range::<&[u8]>(&tree, ..).unwrap().map(Result::unwrap).collect()
    };
    store.trees().iter().map(|name| (name.clone(), records(name))).collect()
}

fn model() -> impl Strategy<Value = Model> {
    let key = prop_oneof![vec(any::<u8>(), 0..12), (0..512usize).prop_map(|len| vec![7; len])];
    let len =
        prop_oneof![20 => 0..40usize, 10 => 1300..1500usize, 5 => 4000..20_000usize, 1 => Just(1 << 20)];
    let value = (any::<u8>(), len).prop_map(|(byte, len)| vec![byte; len]);
    btree_map("[a-z\u{e4}\u{1f600}/ ]{1,12}", btree_map(key, value, 0..40), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn a_dump_makes_an_equal_store(model in model()) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::builder(folder.path().join("from")).memory(1 << 20).open().unwrap();
        for (name, records) in &model {
            let tree = store.create_tree(name).unwrap();
            store.update(|transaction| {
                records.iter().try_for_each(|(key, value)| transaction.put(&tree, key, value))
            }).unwrap();
        }
        let mut dump = Vec::new();
        let written = store.dump(&mut dump, &mut |_| {}).unwrap();
        prop_assert_eq!(written.bytes, dump.len() as u64);
        prop_assert_eq!(content(&store), model.clone());

        let new = folder.path().join("new");
        let loaded = Store::create_from_dump(&new, &dump[..], &mut |_| {}).unwrap();
        prop_assert_eq!((loaded.trees, loaded.records), (written.trees, written.records));
        let verified = Store::verify(&new, &mut |_| {}).unwrap();
        prop_assert_eq!(&verified.damages, &[]);
        let store = Store::builder(&new).open().unwrap();
        prop_assert_eq!(content(&store), model.clone());
        let mut again = Vec::new();
        store.dump(&mut again, &mut |_| {}).unwrap();
        prop_assert!(again == dump, "equal stores have equal dumps");

        let other = Store::builder(folder.path().join("other")).open().unwrap();
        other.load(&dump[..], LoadPolicy::Refuse, &mut |_| {}).unwrap();
        prop_assert_eq!(content(&other), model.clone());
        let outcome = other.load(&dump[..], LoadPolicy::Refuse, &mut |_| {});
        prop_assert_eq!(outcome.is_err(), !model.is_empty());
        other.load(&dump[..], LoadPolicy::Merge, &mut |_| {}).unwrap();
        prop_assert_eq!(content(&other), model);
    }
}

#[test]
fn a_damaged_dump_makes_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::builder(folder.path().join("from")).open().unwrap();
    let tree = store.create_tree("t").unwrap();
    store.update(|transaction| transaction.put(&tree, b"key", b"value")).unwrap();
    let mut dump = Vec::new();
    store.dump(&mut dump, &mut |_| {}).unwrap();
    let new = folder.path().join("new");
    for at in 0..dump.len() {
        let outcome = Store::create_from_dump(&new, &dump[..at], &mut |_| {});
        assert!(matches!(outcome, Err(Error::Dump { .. })), "{outcome:?}");
        let mut damaged = dump.clone();
        damaged[at] ^= 0x10;
        let outcome = Store::create_from_dump(&new, &damaged[..], &mut |_| {});
        assert!(matches!(outcome, Err(Error::Dump { .. })), "{outcome:?}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1, "nothing is left behind");
    }
    Store::create_from_dump(&new, &dump[..], &mut |_| {}).unwrap();
    let outcome = Store::create_from_dump(&new, &dump[..], &mut |_| {});
    assert!(matches!(outcome, Err(Error::NotEmpty(_))), "{outcome:?}");
}

#[test]
fn a_dump_is_of_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::builder(folder.path()).open().unwrap();
    let tree = store.create_tree("t").unwrap();
    let put = |round: u8| {
        store.update(|transaction| {
            (0..5000u64).try_for_each(|n| transaction.put(&tree, &n.to_be_bytes(), &[round; 100]))
        })
    };
    put(1).unwrap();
    let mut dump = Vec::new();
    let mut round = 1;
    store
        .dump(&mut dump, &mut |_| {
            round += 1;
            put(round).unwrap();
            let _ = store.create_tree(&format!("later {round}"));
        })
        .unwrap();
    assert!(round > 2);
    let other = tempfile::tempdir().unwrap();
    Store::create_from_dump(other.path(), &dump[..], &mut |_| {}).unwrap();
    let copy = Store::builder(other.path()).open().unwrap();
    let found = content(&copy);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["t"]);
    assert!(found["t"].len() == 5000 && found["t"].values().all(|value| value[..] == [1; 100]));
}
