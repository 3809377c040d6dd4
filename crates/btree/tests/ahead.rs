//! How scans read leaves: those that they need, and several at once.

mod common;

use std::io;
use std::ops::{Bound, Range as Pages};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_btree::{Range, Tree};
use bedplate_bufpool::storage::{File, Read, Storage, Write};
use bedplate_bufpool::{PAGE, Pool};

const RECORDS: u64 = 80_000;
const FRAMES: usize = 256;

/// A file that counts how often it is asked for pages.
struct Counting {
    file: File,
    asked: Arc<AtomicU64>,
}

impl Storage for Counting {
    fn read(&self, reads: &mut [Read<'_>]) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.file.read(reads);
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        self.file.write(writes);
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn grow(&self, pages: Pages<u64>) -> io::Result<()> {
        self.file.grow(pages)
    }
}

/// Opens a pool, and tells how often its storage is asked.
fn open(directory: &Path) -> (Pool, Arc<AtomicU64>) {
    let asked = Arc::<AtomicU64>::default();
    let file = File::open(&directory.join("pool"), true).unwrap();
    let storage = Counting { file, asked: asked.clone() };
    let builder = Pool::builder("").storage(Box::new(storage)).memory(FRAMES * PAGE).capacity(256 << 20);
    (builder.engine(common::engine()).open().unwrap(), asked)
}

/// What a scan takes that is asked for so many records, with none of its leaves in memory.
struct Scans<'p> {
    pool: &'p Pool,
    asked: &'p AtomicU64,
}

impl Scans<'_> {
    /// Leaves that were read, and how often storage was asked for some.
    fn take(&self, range: Range<'_>, count: usize) -> (u64, u64) {
        let (read, asked) = (self.pool.statistics().read, self.asked.load(Ordering::Relaxed));
        assert_eq!(range.owned().take(count).map(Result::unwrap).count(), count);
        (self.pool.statistics().read - read, self.asked.load(Ordering::Relaxed) - asked)
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

    let (pool, asked) = open(directory.path());
    let tree = Tree::open(&pool, 0).unwrap();
    let scans = Scans { pool: &pool, asked: &asked };
    let density = (RECORDS / leaves) as usize;
    let key = |number: u64| number.to_be_bytes();
    // What leaves have.
    assert_eq!(tree.range(key(0)..).owned().take(2 * density).count(), 2 * density);
    // All over the tree, whose inner nodes differ in what their keys have in common.
    for first in (3 * density as u64..RECORDS - 250 * density as u64).step_by(11_003) {
        let mut at = first;
        let mut range = |records: usize| {
            at += 10 * density as u64;
            (at, at + records as u64)
        };
        // The inner nodes on the way are there; leaves are not.
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
        // The end is far behind what is asked for, in another part of the tree: some leaves at first, then more at once.
        let (low, _) = range(8 * density);
        let (read, asked) = scans.take(tree.range(key(low)..key(RECORDS - 1)), 8 * density);
        assert!((8..=18).contains(&read) && asked <= 5, "{read} leaves for 8, asked {asked} times");
    }
    // Of what nothing is known, at most about as much again is read as is needed.
    let (read, asked) = scans.take(tree.range(key(RECORDS / 2)..), 15 * density);
    assert!((15..=30).contains(&read) && asked <= 8, "{read} leaves for 15, asked {asked} times");
    // All of it: every leaf is read once, eight at a time.
    let (read, asked) = scans.take(tree.iter(), RECORDS as usize);
    assert!((leaves - FRAMES as u64..=leaves + 40).contains(&read), "{read} reads of {leaves} leaves");
    assert!(asked <= read / 6, "asked {asked} times for {read} pages");
}
