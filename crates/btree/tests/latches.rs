//! No thread holds a latch that others need while storage is slow. Storage does not answer for some pages, and
//! operations on other pages must end.

#[path = "common/blocking.rs"]
mod blocking;
mod common;

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use bedplate_btree::Tree;
use bedplate_bufpool::{PAGE, PageId, Pool};
use blocking::{Blocking, LIMIT};

/// Number of overflow pages of the long value.
const PARTS: usize = 60;

fn open(storage: &Blocking, frames: usize) -> Pool {
    let builder = Pool::builder("").storage(Box::new(storage.clone()));
    builder.memory(frames * PAGE).capacity(256 << 20).engine(common::engine()).open().unwrap()
}

fn long(fill: u8) -> Vec<u8> {
    vec![fill; PARTS * 4000]
}

/// Creates a tree of one leaf with a long value and a short one. Returns the numbers of the overflow pages.
fn store_long_value(directory: &Path) -> Vec<u64> {
    let pool = common::open(directory, 256);
    let tree = Tree::create(&pool, 0).unwrap();
    tree.insert(b"long", &long(1)).unwrap();
    tree.insert(b"short", b"0").unwrap();
    let mut pages = Vec::new();
    tree.pages(|page| pages.push(page.0)).unwrap();
    let root = pool.root(0);
    pool.close().unwrap();
    pages.retain(|page| *page != root);
    assert!(pages.len() > 16);
    pages
}

/// Runs `read` while storage answers for one page of the long value at a time. In between, another thread changes the
/// leaf, and each of its changes must end. Returns the number of changes.
fn change_leaf_during(
    storage: &Blocking,
    pages: &[u64],
    tree: &Tree<&Pool>,
    read: impl FnOnce() + Send,
) -> u32 {
    storage.shut(pages.iter().copied());
    let mut changes = 0u32;
    thread::scope(|scope| {
        scope.spawn(|| {
            read();
            storage.finish();
        });
        while let Some(page) = storage.waiting() {
            let (say, done) = mpsc::channel();
            let version = changes.to_be_bytes();
            scope.spawn(move || say.send(tree.upsert(b"short", &version).unwrap()));
            if done.recv_timeout(LIMIT / 6).is_err() {
                storage.open_all();
                panic!("change {changes} of the leaf waits for page {page} of a value");
            }
            changes += 1;
            storage.open(page);
        }
    });
    changes
}

#[test]
fn a_slow_read_of_a_long_value_does_not_keep_writers_from_its_leaf() {
    let directory = tempfile::tempdir().unwrap();
    let pages = store_long_value(directory.path());
    let storage = Blocking::new(&directory.path().join("pool"));
    let pool = open(&storage, 256);
    let tree = Tree::open(&pool, 0).unwrap();
    let changes = change_leaf_during(&storage, &pages, &tree, || {
        assert_eq!(tree.get(b"long", <[u8]>::to_vec).unwrap().unwrap(), long(1));
    });
    assert!(changes as usize >= pages.len(), "{changes} changes during {} reads", pages.len());
}

#[test]
fn a_slow_update_of_a_long_value_does_not_keep_writers_from_its_leaf() {
    let directory = tempfile::tempdir().unwrap();
    let pages = store_long_value(directory.path());
    let storage = Blocking::new(&directory.path().join("pool"));
    let pool = open(&storage, 256);
    let tree = Tree::open(&pool, 0).unwrap();
    let changes = change_leaf_during(&storage, &pages, &tree, || {
        let mut calls = 0;
        tree.update_in_place(b"long", |value| {
            calls += 1;
            assert_eq!(value, long(1));
            value.fill(2);
        })
        .unwrap();
        assert_eq!(calls, 1);
    });
    assert!(changes as usize >= pages.len(), "{changes} changes during {} reads", pages.len());
    assert_eq!(tree.get(b"long", <[u8]>::to_vec).unwrap().unwrap(), long(2));
    tree.check().unwrap();
}

/// Memory has room for few pages of the value, so its first page is evicted while the others are read. The reads must
/// end nevertheless.
#[test]
fn a_long_value_is_read_in_little_memory_beside_writers_of_its_leaf() {
    let directory = tempfile::tempdir().unwrap();
    store_long_value(directory.path());
    let pool = common::open(directory.path(), 24);
    let tree = Tree::open(&pool, 0).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut version = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                tree.upsert(b"short", &version.to_be_bytes()).unwrap();
                version += 1;
            }
        });
        for round in 0..30u8 {
            let found = tree.get(b"long", <[u8]>::to_vec).unwrap().unwrap();
            assert_eq!(found, long(found[0]));
            assert!(
                tree.update(b"long", |old, new| {
                    assert_eq!(old, long(old[0]));
                    new.extend(long(round));
                })
                .unwrap()
            );
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap();
    });
    tree.check().unwrap();
}

/// Values replace each other, so their pages are used again for the same key. No reader sees parts of two values.
#[test]
fn a_long_value_is_whole_while_it_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    store_long_value(directory.path());
    let pool = common::open(directory.path(), 100);
    let tree = Tree::open(&pool, 0).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            (0..200u8).for_each(|fill| assert!(tree.upsert(b"long", &long(fill)).unwrap()));
        });
        while !writer.is_finished() {
            let found = tree.get(b"long", <[u8]>::to_vec).unwrap().unwrap();
            assert!(found == long(found[0]), "parts of several values");
        }
    });
}

#[test]
fn pages_of_a_long_value_are_read_together() {
    let directory = tempfile::tempdir().unwrap();
    let pages = store_long_value(directory.path());
    let storage = Blocking::new(&directory.path().join("pool"));
    let pool = open(&storage, 256);
    let tree = Tree::open(&pool, 0).unwrap();
    let before = storage.calls();
    assert_eq!(tree.get(b"long", <[u8]>::to_vec).unwrap().unwrap(), long(1));
    let calls = storage.calls() - before;
    assert!(calls <= 10, "storage was asked {calls} times for {} pages", pages.len());
}

#[test]
fn a_check_that_waits_for_a_leaf_does_not_keep_writers_from_the_tree() {
    let directory = tempfile::tempdir().unwrap();
    let key = |n: u64| n.to_be_bytes();
    let mut leaves = Vec::new();
    {
        let pool = common::open(directory.path(), 256);
        let tree = Tree::create(&pool, 0).unwrap();
        (0..200u64).for_each(|n| assert!(tree.insert(&key(2 * n), &[1; 200]).unwrap()));
        assert_eq!(tree.check().unwrap().height, 2);
        tree.pages(|page| leaves.push(page)).unwrap();
        pool.close().unwrap();
    }
    // The root comes first, then the leaves in key order.
    let slow: PageId = leaves[leaves.len() / 2];
    let storage = Blocking::new(&directory.path().join("pool"));
    let pool = open(&storage, 256);
    let tree = Tree::open(&pool, 0).unwrap();
    // Storage stops answering for a leaf in the middle. The first leaf splits, which holds its parent exclusively.
    storage.shut([slow.0]);
    thread::scope(|scope| {
        let check = scope.spawn(|| tree.check());
        assert_eq!(storage.waiting(), Some(slow.0));
        let (say, done) = mpsc::channel();
        let (tree, height) = (&tree, 2);
        scope.spawn(move || {
            (0..20u64)
                .for_each(|n| assert!(!tree.upsert(&[&key(2 * n)[..], b"x"].concat(), &[2; 200]).unwrap()));
            say.send(())
        });
        let inserted = done.recv_timeout(LIMIT / 6);
        storage.open_all();
        let shape = check.join().unwrap().unwrap();
        inserted.expect("inserts wait for the check, which waits for storage");
        assert!((200..=220).contains(&shape.records) && shape.height == height, "{shape:?}");
    });
    let shape = tree.check().unwrap();
    assert_eq!(shape.records, 220);
    assert_eq!(shape, tree.pages(drop).unwrap());
}
