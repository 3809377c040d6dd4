//! Limits of a tree: refused values, values at the limit, and errors without side effects.

mod common;

use bedplate_btree::{Error, MAX_KEY, MAX_RECORD, MAX_VALUE, Tree, max_key, max_record};
use bedplate_bufpool::PageSize;

#[test]
fn keys_and_values_have_limits() {
    let (_directory, pool) = common::pool(64);
    let tree = Tree::create(&pool, 0).unwrap();
    let long = vec![1; MAX_KEY + 1];
    assert!(
        matches!(tree.upsert(&long, b""), Err(Error::KeyTooLong { len, max: MAX_KEY }) if len == MAX_KEY + 1)
    );
    assert!(!tree.remove(&long).unwrap() && !tree.contains_key(&long).unwrap());
    assert_eq!(tree.get(&long, |_| ()).unwrap(), None);
    let large = vec![1; MAX_VALUE + 1];
    assert!(matches!(tree.insert(b"key", &large), Err(Error::ValueTooLong { .. })));
    assert!(!tree.contains_key(b"key").unwrap());
    let pages = pool.pages_in_use();
    assert!(tree.insert(b"key", &large[1..]).unwrap());
    assert!(tree.update(b"key", |old, new| new.extend(old.iter().chain(&[1]))).is_err());
    assert_eq!(tree.get(b"key", <[u8]>::len).unwrap(), Some(MAX_VALUE));
    assert!(tree.upsert(b"key", b"").unwrap());
    assert_eq!(tree.get(b"key", <[u8]>::len).unwrap(), Some(0));
    assert_eq!(pool.pages_in_use(), pages);
}

#[test]
fn the_largest_records_come_and_go_in_any_order() {
    for size in common::page_sizes() {
        let directory = tempfile::tempdir().unwrap();
        let pool = common::open_sized(directory.path(), 32, size);
        let tree = Tree::create(&pool, 0).unwrap();
        let (key, record) = (max_key(size), max_record(size));
        // Keys of maximum length. They differ in all bytes or only in the last ones.
        let keys = |n: u64| [vec![(n % 3) as u8; key - 8], common::mixed(n).to_be_bytes().to_vec()].concat();
        let len = |n: u64| record - key + (n % 2) as usize;
        let records = common::scaled(500) as u64;
        for n in 0..records {
            assert!(tree.insert(&keys(n), &vec![n as u8; len(n)]).unwrap());
        }
        assert_eq!(tree.check().unwrap().records, records);
        for n in 0..records {
            let value = tree.get(&keys(n), <[u8]>::to_vec).unwrap().unwrap();
            assert!(value.len() == len(n) && value.iter().all(|byte| *byte == n as u8));
        }
        for n in 0..records {
            assert!(tree.remove(&keys(n)).unwrap());
        }
        assert_eq!(tree.check().unwrap().records, 0);
    }
}

#[test]
fn the_limit_of_keys_follows_the_page_size() {
    assert_eq!(PageSize::ALL.map(max_key), [512, 1024, 2048, 4096, 8192]);
    assert_eq!(PageSize::ALL.map(max_record), [1460, 2996, 6068, 12212, 24500]);
    assert_eq!((MAX_KEY, MAX_RECORD), (512, 1460));
    for size in common::page_sizes() {
        let directory = tempfile::tempdir().unwrap();
        let pool = common::open_sized(directory.path(), 64, size);
        let tree = Tree::create(&pool, 0).unwrap();
        assert_eq!(tree.max_key(), max_key(size));
        let long = vec![1; max_key(size) + 1];
        let refused = tree.insert(&long, b"");
        assert!(
            matches!(refused, Err(Error::KeyTooLong { len, max }) if (len, max) == (long.len(), tree.max_key()))
        );
        let refused = tree.bulk_load([(&long, b"")]);
        assert!(matches!(refused, Err(Error::KeyTooLong { .. })));
        assert_eq!(tree.get(&long, |_| ()).unwrap(), None);
        assert!(!tree.remove(&long).unwrap() && !tree.contains_key(&long).unwrap());
        assert!(tree.insert(&long[1..], b"longest").unwrap());
        assert_eq!(tree.get(&long[1..], <[u8]>::to_vec).unwrap().unwrap(), b"longest");
        let mut range = tree.range(&long[1..]..&long[..]);
        assert_eq!(range.try_next().unwrap(), Some((&long[1..], &b"longest"[..])));
        assert_eq!(range.try_next().unwrap(), None);
    }
}

#[test]
fn slots_have_one_tree() {
    let (_directory, pool) = common::pool(64);
    assert!(matches!(Tree::open(&pool, 1), Err(Error::NoTree { slot: 1 })));
    let first = Tree::create(&pool, 1).unwrap();
    assert!(matches!(Tree::create(&pool, 1), Err(Error::SlotInUse { slot: 1 })));
    let second = Tree::open_or_create(&pool, 2).unwrap();
    first.upsert(b"key", b"first").unwrap();
    second.upsert(b"key", b"second").unwrap();
    assert_eq!(
        Tree::open_or_create(&pool, 1).unwrap().get(b"key", <[u8]>::to_vec).unwrap().unwrap(),
        b"first"
    );
    first.destroy().unwrap();
    assert_eq!(second.get(b"key", <[u8]>::to_vec).unwrap().unwrap(), b"second");
    assert!(matches!(Tree::open(&pool, 1), Err(Error::NoTree { .. })));
}

#[test]
fn a_bulk_load_that_fails_leaves_nothing_behind() {
    let (_directory, pool) = common::pool(64);
    let tree = Tree::create(&pool, 0).unwrap();
    let records =
        (0u64..5000).chain([17]).map(|n| (n.to_be_bytes(), vec![7; if n % 50 == 0 { 5000 } else { 50 }]));
    assert!(matches!(tree.bulk_load(records), Err(Error::NotSorted { position: 5000 })));
    assert_eq!(pool.pages_in_use(), 1);
    assert_eq!(tree.check().unwrap().records, 0);
    tree.insert(b"key", b"").unwrap();
    assert!(matches!(tree.bulk_load([("a", "b")]), Err(Error::NotEmpty)));
}

#[test]
fn a_full_storage_is_an_error_and_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let pool = bedplate_bufpool::Pool::builder(path).memory(64 * 4096).capacity(400 * 4096).open().unwrap();
    let tree = Tree::create(&pool, 0).unwrap();
    let mut inserted = 0;
    let error = loop {
        let value = vec![3; if inserted % 10 == 0 { 9000 } else { 100 }];
        match tree.insert(&common::mixed(inserted).to_be_bytes(), &value) {
            Ok(true) => inserted += 1,
            Ok(false) => panic!("a key that was not there"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Pool(bedplate_bufpool::Error::Full { .. })), "{error}");
    let shape = tree.check().unwrap();
    assert_eq!((shape.records, shape.pages()), (inserted, pool.pages_in_use()));
    for n in 0..inserted {
        assert!(tree.remove(&common::mixed(n).to_be_bytes()).unwrap());
    }
    assert_eq!(tree.check().unwrap().records, 0);
}
