//! How many leaves a scan reads: those that it needs, together.

mod common;

use std::ops::Bound;

use bedplate_btree::{Range, Tree};
use bedplate_bufpool::Pool;
use tempfile::TempDir;

const RECORDS: u64 = 20_000;
const FRAMES: usize = 256;

/// A pool with a tree of records in order, 30 or so in a leaf, of which nothing is in memory, and how many leaves it has.
fn stored() -> (Pool, TempDir, u64) {
    let (folder, pool) = common::pool(4096);
    let tree = Tree::create(&pool, 0).unwrap();
    tree.bulk_load((0..RECORDS).map(|number| (number.to_be_bytes(), [7; 120]))).unwrap();
    let leaves = tree.check().unwrap().leaves;
    drop(tree);
    pool.close().unwrap();
    drop(pool);
    (common::open(folder.path(), FRAMES), folder, leaves)
}

/// What a scan reads that begins at `first` and is asked for so many records, with nothing of its leaves in memory.
fn reads(pool: &Pool, range: Range<'_>, count: usize) -> u64 {
    let before = pool.statistics().read;
    assert_eq!(range.owned().take(count).map(Result::unwrap).count(), count);
    pool.statistics().read - before
}

#[test]
fn a_scan_reads_what_it_needs() {
    let (pool, _folder, leaves) = stored();
    let tree = Tree::open(&pool, 0).unwrap();
    let density = (RECORDS / leaves) as usize;
    let key = |number: u64| number.to_be_bytes();
    // The inner nodes, and what leaves have.
    assert_eq!(tree.range(key(0)..).owned().take(2 * density).count(), 2 * density);
    // It goes on behind what has been read.
    let mut at = 3 * density as u64;
    let mut range = |records: usize| {
        at += 10 * density as u64;
        (key(at), key(at + records as u64))
    };
    for records in [1, density / 2, density, 3 * density] {
        let needed = 1..=2 + (records / density) as u64;
        let (low, high) = range(records);
        let bounded = reads(&pool, tree.range(low..high), records);
        assert!(needed.contains(&bounded), "{bounded} leaves for {records} records between bounds");
        let (low, high) = range(records);
        let bounds = (Bound::Excluded(low), Bound::Included(high));
        let bounded = reads(&pool, tree.range_rev(bounds), records);
        assert!(needed.contains(&bounded), "{bounded} leaves for {records} records backwards");
        let (low, _) = range(records);
        let expected = reads(&pool, tree.range(low..).expect(records), records);
        assert!(needed.contains(&expected), "{expected} leaves for {records} that are expected");
        let (_, high) = range(records);
        let expected = reads(&pool, tree.range_rev(..high).expect(records), records);
        assert!(needed.contains(&expected), "{expected} leaves for {records} expected backwards");
    }
    // Nothing is known: at most as many again as it needed.
    let (low, _) = range(5 * density);
    let open = reads(&pool, tree.range(low..), 5 * density);
    assert!((5..=12).contains(&open), "{open} leaves for 5");
    // All of it, with every leaf read once.
    let before = pool.statistics().read;
    assert_eq!(tree.iter().owned().map(Result::unwrap).count() as u64, RECORDS);
    let read = pool.statistics().read - before;
    assert!((leaves - FRAMES as u64..=leaves + 20).contains(&read), "{read} reads of {leaves} leaves");
}
