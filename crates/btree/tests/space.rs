//! Space: pages are freed, trees stay dense, and a closed tree can be opened again.

mod common;

use std::fs;

use bedplate_btree::Tree;

#[test]
fn a_file_does_not_grow_when_as_much_is_removed_as_is_inserted() {
    let (directory, pool) = common::pool(128);
    let tree = Tree::create(&pool, 0).unwrap();
    let key = |n: u64| common::mixed(n).to_be_bytes();
    let mut first_round = 0;
    for round in 0..12u64 {
        for n in 0..4000 {
            let len = if n % 100 == 0 { 6000 } else { 120 };
            assert!(tree.insert(&key(round * 4000 + n), &vec![round as u8; len]).unwrap());
        }
        let shape = tree.check().unwrap();
        assert_eq!((shape.records, shape.pages()), (4000, pool.pages_in_use()));
        for n in 0..4000 {
            assert!(tree.remove(&key(round * 4000 + n)).unwrap());
        }
        assert_eq!(tree.check().unwrap().records, 0);
        assert!(pool.pages_in_use() <= 3, "{} pages for nothing", pool.pages_in_use());
        let size = fs::metadata(directory.path().join("pool")).unwrap().len();
        if round == 1 {
            first_round = size;
        } else if round > 1 {
            assert_eq!(size, first_round);
        }
    }
}

#[test]
fn a_queue_uses_as_many_pages_as_it_has_records_for() {
    let (_directory, pool) = common::pool(64);
    let tree = Tree::create(&pool, 0).unwrap();
    for n in 0u64..60_000 {
        tree.insert(&n.to_be_bytes(), &[7; 100]).unwrap();
        if n >= 1000 {
            assert!(tree.remove(&(n - 1000).to_be_bytes()).unwrap());
        }
    }
    let shape = tree.check().unwrap();
    assert_eq!(shape.records, 1000);
    assert!(shape.pages() < 60, "{} pages", shape.pages());
}

#[test]
fn rising_keys_and_bulk_loads_fill_their_leaves() {
    let records = |n: u64| (0..n).map(|n| (n.to_be_bytes(), [7; 120]));
    let (_directory, pool) = common::pool(256);
    let inserted = Tree::create(&pool, 0).unwrap();
    for (key, value) in records(30_000) {
        inserted.insert(&key, &value).unwrap();
    }
    let loaded = Tree::create(&pool, 1).unwrap();
    assert_eq!(loaded.bulk_load(records(30_000)).unwrap(), 30_000);
    for shape in [inserted.check().unwrap(), loaded.check().unwrap()] {
        assert_eq!(shape.records, 30_000);
        assert!(shape.leaf_bytes * 100 > shape.leaf_capacity() * 94, "{shape:?}");
    }
    assert!(loaded.check().unwrap().leaves <= 1010);
    let [a, b] = [&inserted, &loaded].map(|tree| tree.iter().owned().collect::<Result<Vec<_>, _>>().unwrap());
    assert_eq!(a, b);
}

#[test]
fn random_keys_leave_leaves_more_than_two_thirds_full() {
    // In memory, siblings redistribute records. If most leaves are in storage, few siblings are available for that.
    for (frames, percent) in [(2048, 74), (64, 62)] {
        let (_directory, pool) = common::pool(frames);
        let tree = Tree::create(&pool, 0).unwrap();
        for n in 0..30_000 {
            tree.insert(&common::mixed(n).to_be_bytes(), &[7; 120]).unwrap();
        }
        let shape = tree.check().unwrap();
        assert!(shape.leaf_bytes * 100 > shape.leaf_capacity() * percent, "{frames}: {shape:?}");
    }
}

#[test]
fn the_estimate_is_near() {
    let (_directory, pool) = common::pool(1024);
    let tree = Tree::create(&pool, 0).unwrap();
    assert_eq!(tree.estimate_len().unwrap(), 0);
    for n in 0..20_000u64 {
        tree.insert(&common::mixed(n).to_be_bytes(), &[7; (50)]).unwrap();
        if n == 9 {
            assert_eq!(tree.estimate_len().unwrap(), 10);
        }
    }
    let estimate = tree.estimate_len().unwrap();
    assert!((16_000..24_000).contains(&estimate), "{estimate}");
}

#[test]
fn reopened_trees_are_as_they_were_closed() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0u64..5 {
        let pool = common::open(directory.path(), 64);
        let tree = Tree::open_or_create(&pool, 7).unwrap();
        assert_eq!(tree.check().unwrap().records, round * 2000);
        for n in 0..round * 2000 {
            assert_eq!(tree.get(&n.to_le_bytes(), |v| v[0]).unwrap(), Some((n / 2000) as u8));
        }
        for n in round * 2000..(round + 1) * 2000 {
            tree.insert(&n.to_le_bytes(), &vec![round as u8; 90 + (n % 64 / 63) as usize * 8000]).unwrap();
        }
        pool.close().unwrap();
    }
}
