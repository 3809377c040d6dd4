//! Double writes: bad sectors, batches of several threads, and crashes with several batches in flight.

mod common;
#[path = "common/faulty.rs"]
mod faulty;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use bedplate_bufpool::storage::{Read, Storage, Write};
use bedplate_bufpool::{Builder, Choice, Error, Kind, PAGE, PageId, Pool, TornPages};
use common::{allocate, fill, stamp, stored_version, version, write};
use faulty::Faulty;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const FRAMES: usize = 1024;
/// Number of pages of a batch.
const BATCH: usize = 64;
/// The first page that a pool hands out.
const FIRST: u64 = 256;

/// A disk with bad sectors. A test can make its fsyncs wait. Clones are the same disk.
#[derive(Clone)]
struct Disk {
    disk: Faulty,
    bad: Arc<Mutex<BTreeSet<u64>>>,
    waiting: Arc<(Mutex<bool>, Condvar)>,
    /// Whether fsyncs wait when the disk has done them, before they return.
    returning: Arc<(Mutex<bool>, Condvar)>,
    /// Number of fsyncs that began.
    fsyncs: Arc<AtomicU64>,
    /// Number of fsyncs that the disk has done.
    fsyncs_done: Arc<AtomicU64>,
    /// Number of batches whose copies were written.
    batches: Arc<AtomicU64>,
}

impl Disk {
    fn new(seed: u64) -> Self {
        Self {
            disk: Faulty::new(seed),
            bad: Arc::default(),
            waiting: Arc::default(),
            returning: Arc::default(),
            fsyncs: Arc::default(),
            fsyncs_done: Arc::default(),
            batches: Arc::default(),
        }
    }

    fn break_sectors(&self, pages: &[PageId]) {
        self.bad.lock().unwrap().extend(pages.iter().map(|page| page.0));
    }

    fn repair_sectors(&self) {
        self.bad.lock().unwrap().clear();
    }

    fn hold_fsyncs(&self, hold: bool) {
        *self.waiting.0.lock().unwrap() = hold;
        self.waiting.1.notify_all();
    }

    fn hold_returns(&self, hold: bool) {
        *self.returning.0.lock().unwrap() = hold;
        self.returning.1.notify_all();
    }

    fn pool(&self, frames: usize, recover: bool) -> Pool {
        self.builder(frames).recover(recover).open().unwrap()
    }

    fn builder(&self, frames: usize) -> Builder {
        Pool::builder("")
            .storage(Box::new(self.clone()))
            .torn_pages(TornPages::DoubleWrite)
            .memory(frames * PAGE)
            .engine(Choice::Only(Kind::Hashtable))
    }
}

impl Storage for Disk {
    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        for write in writes {
            let pages = write.page()..write.page() + (write.bytes().len() / PAGE) as u64;
            // The write of a region of the double-write area. In all versions, the area begins at page 2.
            self.batches.fetch_add(u64::from((2..FIRST).contains(&pages.start)), Ordering::SeqCst);
            let bad = self.bad.lock().unwrap().range(pages).next().copied();
            let Some(bad) = bad else {
                self.disk.write(std::slice::from_mut(write));
                continue;
            };
            // The write fails in the middle of the bad page.
            let (whole, rest) = write.bytes().as_chunks::<PAGE>().0.split_at((bad - write.page()) as usize);
            let mut torn = rest[0];
            torn[2048..].fill(0xee);
            self.disk.write(&mut [Write::new(write.page(), whole), Write::new(bad, &[torn])]);
            write.result = Err(io::Error::from_raw_os_error(libc::EIO));
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.fsyncs.fetch_add(1, Ordering::SeqCst);
        drop(self.waiting.1.wait_while(self.waiting.0.lock().unwrap(), |waiting| *waiting).unwrap());
        let result = self.disk.sync();
        self.fsyncs_done.fetch_add(1, Ordering::SeqCst);
        drop(self.returning.1.wait_while(self.returning.0.lock().unwrap(), |returning| *returning).unwrap());
        result
    }

    fn grow(&self, pages: Range<u64>) -> io::Result<()> {
        self.disk.grow(pages)
    }
}

#[test]
fn a_bad_sector_costs_its_page_only() {
    let disk = Disk::new(1);
    let pool = disk.pool(FRAMES, false);
    let ids = allocate(&pool, 4 * BATCH);
    let bad = ids[BATCH + 7];
    disk.break_sectors(&[bad]);
    for round in 2..20 {
        write(&pool, &ids, round);
        let error = pool.sync().unwrap_err();
        assert!(matches!(&error, Error::Write { page, .. } if *page == bad), "round {round}: {error}");
        let failed = pool.statistics().write_failed;
        assert!(failed < 2 * round, "round {round}: {failed} pages were not written");
    }
    let error = pool.close().unwrap_err();
    assert!(matches!(&error, Error::Write { page, .. } if *page == bad), "{error}");
    drop(pool);
    // The sector is still bad. The pool opens, and has the newest version of all pages.
    disk.disk.crash();
    let pool = disk.pool(FRAMES, true);
    for page in &ids {
        assert_eq!(stored_version(&pool, *page), 19, "page {page}");
    }
    // The sector stays bad, and other pages are still written.
    write(&pool, &ids, 20);
    assert!(matches!(pool.sync(), Err(Error::Write { page, .. }) if page == bad));
    assert!(matches!(pool.close(), Err(Error::Write { page, .. }) if page == bad));
    disk.repair_sectors();
    pool.close().unwrap();
    drop(pool);
    let pool = disk.pool(FRAMES, false);
    for page in &ids {
        assert_eq!(stored_version(&pool, *page), 20, "page {page}");
    }
}

#[test]
fn too_many_bad_sectors_are_an_error_until_some_are_good() {
    let disk = Disk::new(2);
    let pool = disk.pool(FRAMES, false);
    let ids = allocate(&pool, 8 * BATCH);
    let (bad, good) = ids.split_at(6 * BATCH);
    disk.break_sectors(bad);
    write(&pool, bad, 2);
    assert!(matches!(pool.flush(), Err(Error::Write { .. })));
    write(&pool, good, 2);
    let error = loop {
        if let Err(error) = pool.flush() {
            let Error::Write { source, .. } = &error else { panic!("{error}") };
            if source.raw_os_error().is_none() {
                break error;
            }
        }
        write(&pool, &good[..1], 2);
    };
    assert!(error.to_string().contains("cannot be written in their places"), "{error}");
    disk.repair_sectors();
    pool.close().unwrap();
    drop(pool);
    let pool = disk.pool(FRAMES, false);
    for page in &ids {
        assert_eq!(stored_version(&pool, *page), 2);
    }
}

/// The disk loses pages before the pool learns that the fsync failed. The pool has their copies all the time.
#[test]
fn a_page_comes_from_its_copy_before_the_failed_fsync_has_returned() {
    let disk = Disk::new(4);
    let pool = disk.builder(64).provider_threads(0).open().unwrap();
    let ids = allocate(&pool, 4 * 64);
    let (changed, others) = ids.split_at(8);
    write(&pool, changed, 2);
    pool.flush().unwrap();
    while changed.iter().any(|page| !pool.would_read(*page)) {
        assert!(others.iter().all(|page| stored_version(&pool, *page) == 1));
    }
    disk.disk.forgets(true);
    disk.disk.fail(0, 0, 1_000_000);
    disk.hold_returns(true);
    let done = disk.fsyncs_done.load(Ordering::SeqCst);
    thread::scope(|scope| {
        let syncing = scope.spawn(|| pool.sync());
        while disk.fsyncs_done.load(Ordering::SeqCst) == done {
            thread::yield_now();
        }
        let read: Vec<_> = changed.iter().map(|page| pool.pin_shared(*page).map(|_| ())).collect();
        disk.hold_returns(false);
        assert!(syncing.join().unwrap().is_err());
        read.into_iter().for_each(|result| result.unwrap());
    });
    disk.disk.fail(0, 0, 0);
    assert!(changed.iter().all(|page| stored_version(&pool, *page) == 2));
    pool.sync().unwrap();
    drop(pool);
    disk.disk.crash();
    let pool = disk.pool(64, true);
    assert!(changed.iter().all(|page| stored_version(&pool, *page) == 2));
}

/// Waits until this number of batches have written their copies.
fn wait_for_batches(disk: &Disk, batches: u64) {
    let start = std::time::Instant::now();
    while disk.batches.load(Ordering::SeqCst) < batches {
        assert!(
            start.elapsed().as_secs() < 60,
            "a batch waits for another one's fsync before it writes its copies"
        );
        thread::yield_now();
    }
}

/// Number of fsyncs that three batches cause whose copies have been written while no fsync ends.
fn fsyncs_of_three_batches() -> u64 {
    let disk = Disk::new(3);
    // Without a page provider, a thread that misses a page evicts a batch of dirty ones.
    let pool = disk.builder(FRAMES).provider_threads(0).open().unwrap();
    let ids = allocate(&pool, 3 * FRAMES);
    write(&pool, &ids[..FRAMES], 2);
    let [fsyncs, batches] = [&disk.fsyncs, &disk.batches].map(|count| count.load(Ordering::SeqCst));
    disk.hold_fsyncs(true);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (pool, page) = (&pool, ids[FRAMES + thread]);
            scope.spawn(move || assert_eq!(stored_version(pool, page), 1));
        }
        let before = std::panic::catch_unwind(|| wait_for_batches(&disk, batches + 3));
        disk.hold_fsyncs(false);
        before.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(pool.statistics().written > 0);
    disk.fsyncs.load(Ordering::SeqCst) - fsyncs
}

/// On a busy machine, a thread may begin its fsync only after the others have ended theirs. Without sharing, there are always
/// three.
#[test]
fn batches_of_several_threads_share_fsyncs() {
    assert!((0..10).any(|_| fsyncs_of_three_batches() <= 2), "each of three batches has its own fsync");
}

/// Each thread changes its own pages, until the power fails at the given write or in an fsync.
fn crash_after(seed: u64, writes: u64) -> (u64, bool) {
    const THREADS: usize = 3;
    let disk = Disk::new(seed);
    let pool = disk.pool(64, false);
    let ids = allocate(&pool, THREADS * 64);
    let reached: Vec<Mutex<(u64, u64)>> = ids.iter().map(|_| Mutex::new((1, 1))).collect();
    disk.disk.fuse(writes);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (pool, ids, reached, disk) = (&pool, &ids, &reached, &disk);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed << 8 | number as u64);
                while !disk.disk.is_dead() {
                    let index = random.random_range(0..64) * THREADS + number;
                    let Ok(mut page) = pool.pin_exclusive(ids[index]) else { break };
                    let mut known = reached[index].lock().unwrap();
                    known.1 += 1;
                    fill(&mut page, ids[index].0, known.1);
                    drop((page, known));
                    if random.random_range(0..100) == 0 {
                        let before: Vec<u64> = reached.iter().map(|known| known.lock().unwrap().1).collect();
                        if pool.sync().is_ok() {
                            for (known, before) in reached.iter().zip(before) {
                                let mut known = known.lock().unwrap();
                                known.0 = known.0.max(before);
                            }
                        }
                    }
                }
            });
        }
    });
    drop(pool);
    disk.disk.crash();
    // The power fails again while torn pages are restored.
    let interrupted = seed.is_multiple_of(3);
    if interrupted {
        disk.disk.fuse(1 + seed % 5);
        drop(disk.builder(64).recover(true).open());
        disk.disk.crash();
    }
    let pool = disk.pool(64, true);
    let restored = pool.statistics().restored;
    for (page, known) in ids.iter().zip(reached) {
        let (durable, last) = known.into_inner().unwrap();
        let stored = stored_version(&pool, *page);
        assert!(
            (durable..=last).contains(&stored),
            "seed {seed}, {writes} writes: page {page} is of version {stored}, not of {durable} to {last}"
        );
    }
    (restored, interrupted)
}

#[test]
fn a_crash_at_any_write_of_several_batches_loses_no_page() {
    let mut restored = 0;
    for writes in 1..common::scaled(400) as u64 {
        restored += crash_after(writes, writes).0;
    }
    assert!(restored > 0);
}

/// Fsyncs fail while several batches are in flight. Pages that a sync has reported as durable survive a crash.
#[test]
fn failed_fsyncs_of_several_batches_lose_no_page() {
    for seed in 0..common::scaled(60) as u64 {
        let disk = Disk::new(seed);
        disk.disk.forgets(seed.is_multiple_of(2));
        let pool = disk.pool(64, false);
        let ids = allocate(&pool, 3 * 64);
        let versions: Vec<AtomicU64> = ids.iter().map(|_| AtomicU64::new(1)).collect();
        disk.disk.fail(0, 0, 300_000);
        thread::scope(|scope| {
            for number in 0..3 {
                let (pool, ids, versions) = (&pool, &ids, &versions);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed << 8 | number as u64);
                    for _ in 0..400 {
                        let index = random.random_range(0..64) * 3 + number;
                        match pool.pin_exclusive(ids[index]) {
                            Ok(mut page) => {
                                let next = versions[index].load(Ordering::Relaxed) + 1;
                                assert_eq!(version(&page, ids[index].0), next - 1, "seed {seed}");
                                fill(&mut page, ids[index].0, next);
                                versions[index].store(next, Ordering::Relaxed);
                            }
                            Err(Error::Write { .. } | Error::Storage { .. }) => {}
                            Err(error) => panic!("seed {seed}: {error}"),
                        }
                    }
                });
            }
        });
        disk.disk.fail(0, 0, 0);
        // An fsync of the page provider that began earlier may fail during the first one.
        assert!((0..10).any(|_| pool.sync().is_ok()), "seed {seed}: {:?}", pool.sync());
        drop(pool);
        disk.disk.crash();
        let pool = disk.pool(64, true);
        for (page, known) in ids.iter().zip(versions) {
            assert_eq!(stored_version(&pool, *page), known.into_inner(), "seed {seed}, page {page}");
        }
    }
}

/// Gives a page the header and the checksum that the pool would write.
fn seal(image: &mut [u8; PAGE], page: u64) {
    image[..8].copy_from_slice(&(page << 32 | 1 << 10).to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&image[..16]), &image[20..]);
    image[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// Writes a region as pools of the first version did.
fn write_first_version(disk: &Disk, sequence: u64, page: PageId, content: u64) {
    let first = 2 + sequence % 2 * 65;
    let mut images = [[0; PAGE]; 2];
    let words = [u64::from_le_bytes(*b"BEDTWICE"), sequence, 1, page.0];
    for (to, word) in images[0][24..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    seal(&mut images[0], first);
    for (index, word) in images[1][24..].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&stamp(page.0, content, index as u64).to_le_bytes());
    }
    seal(&mut images[1], page.0);
    disk.write(&mut [Write::new(first, &images)]);
    disk.sync().unwrap();
}

#[test]
fn areas_of_the_first_version_are_restored() {
    let disk = Disk::new(4);
    let pool = disk.pool(FRAMES, false);
    let ids = allocate(&pool, 4 * BATCH);
    let page = ids[0];
    // Regions of the current version have copies with higher sequence numbers.
    for round in 2..40 {
        write(&pool, &ids[..2], round);
        pool.flush().unwrap();
    }
    pool.close().unwrap();
    write(&pool, &ids[1..2], 40);
    pool.flush().unwrap();
    drop(pool);
    // A program of the first version has written since then, and its newer batch was last.
    write_first_version(&disk, 8, page, 100);
    write_first_version(&disk, 9, page, 101);
    disk.disk.damage(page.0);
    let pool = disk.pool(FRAMES, true);
    assert_eq!(pool.statistics().restored, 1);
    assert_eq!(stored_version(&pool, page), 101);
    // The current version handles the next crash again.
    for round in 102..110 {
        write(&pool, &ids, round);
        pool.flush().unwrap();
    }
    drop(pool);
    let torn = disk.disk.crash();
    let pool = disk.pool(FRAMES, true);
    assert!(torn > 0);
    for page in &ids {
        // The last batch may not have reached the disk at all.
        assert!((108..=109).contains(&stored_version(&pool, *page)), "page {page}");
    }
}
