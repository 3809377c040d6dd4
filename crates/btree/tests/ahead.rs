//! Read-ahead of scans: they read the leaves that they need, and several at once.

#[path = "common/blocking.rs"]
mod blocking;
mod common;

use std::ops::Bound;
use std::path::Path;

use bedplate_btree::{Range, Shape, Tree};
use bedplate_bufpool::{PAGE, Pool};
use blocking::Blocking;

const RECORDS: u64 = 80_000;
const FRAMES: usize = 256;

/// Opens a pool on storage that counts its read calls.
fn open(directory: &Path) -> (Pool, Blocking) {
    let storage = Blocking::new(&directory.join("pool"));
    let builder =
        Pool::builder("").storage(Box::new(storage.clone())).memory(FRAMES * PAGE).capacity(256 << 20);
    (builder.engine(common::engine()).open().unwrap(), storage)
}

/// Measures the reads of a scan when none of its leaves is in memory.
struct Scans<'p> {
    pool: &'p Pool,
    storage: &'p Blocking,
}

impl Scans<'_> {
    /// Returns the number of leaves that a scan has read, and the number of read calls of the storage.
    fn take(&self, range: Range<'_>, count: usize) -> (u64, u64) {
        let (read, asked) = (self.pool.statistics().read, self.storage.calls());
        assert_eq!(range.owned().take(count).map(Result::unwrap).count(), count);
        (self.pool.statistics().read - read, self.storage.calls() - asked)
    }
}

#[test]
fn a_scan_reads_what_it_needs_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let pool = common::open(directory.path(), 4096);
    let tree = Tree::create(&pool, 0).unwrap();
    tree.bulk_load((0..RECORDS).map(|number| (number.to_be_bytes(), [7; 120]))).unwrap();
    let leaves = tree.check().unwrap().leaves;
    drop(tree);
    pool.close().unwrap();
    drop(pool);

    let (pool, storage) = open(directory.path());
    let tree = Tree::open(&pool, 0).unwrap();
    let scans = Scans { pool: &pool, storage: &storage };
    let density = (RECORDS / leaves) as usize;
    let key = |number: u64| number.to_be_bytes();
    // This scan tells the tree how many records a leaf has.
    assert_eq!(tree.range(key(0)..).owned().take(2 * density).count(), 2 * density);
    // The scans cover the whole tree, because the inner nodes have different common prefixes.
    for first in (3 * density as u64..RECORDS - 250 * density as u64).step_by(11_003) {
        let mut at = first;
        let mut range = |records: usize| {
            at += 10 * density as u64;
            (at, at + records as u64)
        };
        // The inner nodes on the path are in memory, and the leaves are not.
        assert!(
            [0, 220].iter().all(|leaves| tree.contains_key(&key(first + leaves * density as u64)).unwrap())
        );
        for records in [1, density / 2, density, 3 * density] {
            let needed = 1..=2 + (records / density) as u64;
            let verify = |(read, asked): (u64, u64), how: &str| {
                assert!(needed.contains(&read), "{how}: {read} leaves for {records}");
                // The leaves may have two parents.
                assert!(asked <= 2, "{how}: asked {asked} times for {records}");
            };
            let (low, high) = range(records);
            verify(scans.take(tree.range(key(low)..key(high)), records), "between bounds");
            let (low, high) = range(records);
            let bounds = (Bound::Excluded(key(low)), Bound::Included(key(high)));
            verify(scans.take(tree.range_rev(bounds), records), "backwards");
            let (low, _) = range(records);
            verify(scans.take(tree.range(key(low)..).expecting(records), records), "expected");
            let (_, high) = range(records);
            verify(scans.take(tree.range_rev(..key(high)).expecting(records), records), "expected backwards");
        }
        // The bound is far beyond the requested records, in another part of the tree. The scan reads few leaves at
        // first, then more.
        let (low, _) = range(8 * density);
        let (read, asked) = scans.take(tree.range(key(low)..key(RECORDS - 1)), 8 * density);
        assert!((8..=18).contains(&read) && asked <= 5, "{read} leaves for 8, asked {asked} times");
    }
    // Without any information, a scan reads at most about twice as many leaves as it needs.
    let (read, asked) = scans.take(tree.range(key(RECORDS / 2)..), 15 * density);
    assert!((15..=30).contains(&read) && asked <= 8, "{read} leaves for 15, asked {asked} times");
    // A scan of the whole tree reads every leaf once, eight at a time.
    let (read, asked) = scans.take(tree.iter(), RECORDS as usize);
    assert!((leaves - FRAMES as u64..=leaves + 40).contains(&read), "{read} reads of {leaves} leaves");
    assert!(asked <= read / 6, "asked {asked} times for {read} pages");
}

#[test]
fn lookups_together_read_their_leaves_together() {
    let directory = tempfile::tempdir().unwrap();
    let pool = common::open(directory.path(), 4096);
    let tree = Tree::create(&pool, 0).unwrap();
    // Only even numbers are keys.
    tree.bulk_load((0..RECORDS).map(|number| ((2 * number).to_be_bytes(), number.to_le_bytes()))).unwrap();
    tree.upsert(&1u64.to_be_bytes(), &[1; 10_000]).unwrap();
    let Shape { leaves, height, .. } = tree.check().unwrap();
    drop(tree);
    pool.close().unwrap();
    drop(pool);

    let (pool, storage) = open(directory.path());
    let tree = Tree::open(&pool, 0).unwrap();
    let step = 2 * RECORDS / 64;
    let look_up = |first: u64| {
        let keys: Vec<_> = (0..64).map(|at| (first + at * step).to_be_bytes()).collect();
        let (read, calls) = (pool.statistics().read, storage.calls());
        let mut seen = vec![false; keys.len()];
        tree.get_many(&keys, |at, value| {
            assert!(!std::mem::replace(&mut seen[at], true));
            let number = first + at as u64 * step;
            let expected = number.is_multiple_of(2).then(|| (number / 2).to_le_bytes());
            assert_eq!(value, expected.as_ref().map(|value| &value[..]), "{number}");
        })
        .unwrap();
        assert!(seen.into_iter().all(|seen| seen));
        (pool.statistics().read - read, storage.calls() - calls)
    };
    // The first time, inner nodes are absent too.
    let (read, calls) = look_up(10);
    // The engine of ring 0 has its free frames in several lists, so fewer pages may be read together there.
    assert!(
        read >= 64 && (calls <= u64::from(height) || common::in_guest()),
        "asked {calls} times for {read} pages"
    );
    // The keys are in different leaves, which are not in memory.
    let per_leaf = 2 * RECORDS / leaves;
    let (read, calls) = look_up(10 + 3 * per_leaf);
    if common::in_guest() {
        return;
    }
    assert_eq!((read, calls), (64, 1));
    assert_eq!(look_up(10 + 3 * per_leaf), (0, 0));
    // These keys are absent, and their leaves are in memory or are the next ones.
    let (read, calls) = look_up(11 + 3 * per_leaf);
    assert!(read <= 8 && calls <= 1, "asked {calls} times for {read} pages");
    // One key is too long, one occurs twice, and one value is in overflow pages.
    let keys = [&[7u8; 5000][..], &0u64.to_be_bytes(), &0u64.to_be_bytes(), &1u64.to_be_bytes()];
    let mut lens = [None; 4];
    tree.get_many(&keys, |at, value| lens[at] = value.map(<[u8]>::len)).unwrap();
    assert_eq!(lens, [None, Some(8), Some(8), Some(10_000)]);
}

#[test]
fn records_that_are_changed_together_have_their_leaves_read_together() {
    let directory = tempfile::tempdir().unwrap();
    let pool = common::open(directory.path(), 4096);
    let tree = Tree::create(&pool, 0).unwrap();
    tree.bulk_load((0..RECORDS).map(|number| (number.to_be_bytes(), number.to_le_bytes()))).unwrap();
    let Shape { height, .. } = tree.check().unwrap();
    drop(tree);
    pool.close().unwrap();
    drop(pool);

    let (pool, storage) = open(directory.path());
    let tree = Tree::open(&pool, 0).unwrap();
    let keys: Vec<_> = (0..64).map(|at| (at * RECORDS / 64).to_be_bytes()).collect();
    let calls = storage.calls();
    tree.warm(&keys).unwrap();
    let (read, calls) = (pool.statistics().read, storage.calls() - calls);
    // The engine of ring 0 has its free frames in several lists, so fewer pages may be read together there.
    assert!(
        read >= 64 && (calls <= u64::from(height) || common::in_guest()),
        "asked {calls} times for {read} pages"
    );
    // One key is too long, and one is after all others.
    tree.warm(&[&[7u8; 5000][..], &[0xff; 8]]).unwrap();
    for key in &keys {
        assert!(tree.upsert(key, &[7; 8]).unwrap());
    }
    if !common::in_guest() {
        assert!(pool.statistics().read <= read + 1, "the leaves were in memory");
    }
}

/// The frames are not enough for the pages of all keys.
#[test]
fn lookups_together_end_where_memory_is_small() {
    let directory = tempfile::tempdir().unwrap();
    let pool = common::open(directory.path(), 4096);
    let tree = Tree::create(&pool, 0).unwrap();
    tree.bulk_load((0..RECORDS).map(|number| (number.to_be_bytes(), [7; 120]))).unwrap();
    drop(tree);
    pool.close().unwrap();
    drop(pool);
    let pool = common::open(directory.path(), 16);
    let tree = Tree::open(&pool, 0).unwrap();
    let keys: Vec<_> = (0..200).map(|at| (at * RECORDS / 200).to_be_bytes()).collect();
    let mut found = 0;
    tree.get_many(&keys, |_, value| found += usize::from(value.is_some())).unwrap();
    assert_eq!(found, keys.len());
    tree.warm(&keys).unwrap();
}
