//! The page provider: a thread that needs a frame does not write, and waits for a write only if no page is clean.

#[path = "common/blocking.rs"]
mod blocking;
mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/queueing.rs"]
mod queueing;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_bufpool::storage::{Read, Storage, Write};
use bedplate_bufpool::{Builder, Choice, Error, Kind, Log, PAGE, PageId, Pool, TornPages};
use blocking::{Blocking, LIMIT};
use common::{allocate, fill, kinds_of_here, scaled, stored_version, version, write};
use faulty::Faulty;
use queueing::Queueing;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const FRAMES: usize = 64;
/// The name of the provider's threads.
const THREAD: &str = "bufpool-provide";

fn builder(disk: impl Storage + 'static, kind: Kind) -> Builder {
    Pool::builder("").storage(Box::new(disk)).memory(FRAMES * PAGE).engine(Choice::Only(kind))
}

/// Makes all pages in memory dirty, while no write ends or all fail. It reads pages in and changes them until no frame is free,
/// and then changes the other pages in memory. Returns the dirty pages, and one that is not in memory.
fn fill_with_dirty_pages(pool: &Pool, ids: &[PageId], version: u64) -> (Vec<PageId>, PageId) {
    let mut dirty = BTreeSet::new();
    let mut change = |page: PageId| {
        fill(&mut pool.pin_exclusive(page).unwrap(), page.0, version);
        dirty.insert(page);
    };
    // The provider frees frames of clean pages meanwhile, so the loop runs until no page is clean.
    loop {
        ids.iter().filter(|page| pool.try_optimistic(**page).is_some()).for_each(|page| change(*page));
        let absent = ids.iter().find(|page| pool.try_optimistic(**page).is_none());
        let absent = *absent.expect("there are more pages than frames");
        if pool.statistics().free == 0 {
            return (dirty.into_iter().collect(), absent);
        }
        change(absent);
    }
}

/// Runs `f` in a thread. It must end within the limit; if it does not, `rescue` lets it end.
fn in_time<R: Send>(f: impl FnOnce() -> R + Send, rescue: impl FnOnce(), what: &str) -> R {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        scope.spawn(move || done.send(f()));
        match is_done.recv_timeout(LIMIT) {
            Ok(result) => result,
            Err(_) => {
                rescue();
                panic!("{what}: not in {LIMIT:?}");
            }
        }
    })
}

/// Returns when `is_so` is true, which must happen within the limit.
fn until(is_so: impl Fn() -> bool, what: &str) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "{what}: not in {LIMIT:?}");
        thread::yield_now();
    }
}

/// Most of memory is dirty, and no write ends. There are clean pages, so readers still get frames.
#[test]
fn a_reader_has_a_frame_while_all_writes_are_blocked() {
    for kind in kinds_of_here() {
        let disk = Blocking::new();
        let pool = builder(disk.clone(), kind).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        let (dirty, clean) = ids.split_at(FRAMES * 3 / 4);
        disk.block_writes();
        // Those of these pages that are in memory become dirty. The rest of memory is clean.
        dirty.iter().for_each(|page| fill(&mut pool.pin_exclusive(*page).unwrap(), page.0, 2));
        let read = || {
            for page in clean {
                assert_eq!(stored_version(&pool, *page), 1);
            }
        };
        in_time(read, || disk.unblock_writes(), "reading pages while writes are blocked");
        disk.unblock_writes();
        for page in dirty {
            assert_eq!(stored_version(&pool, *page), 2);
        }
    }
}

/// No page is clean, and no write ends: a reader waits. It gets a frame when the first write has ended.
#[test]
fn a_reader_waits_while_all_pages_are_dirty() {
    for kind in kinds_of_here() {
        let disk = Blocking::new();
        let pool = builder(disk.clone(), kind).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        disk.block_writes();
        let (dirty, wanted) = fill_with_dirty_pages(&pool, &ids, 2);
        let begin =
            || in_time(|| stored_version(&pool, wanted), || disk.unblock_writes(), "a reader that waits");
        thread::scope(|scope| {
            let reader = scope.spawn(begin);
            until(|| pool.statistics().frame_waits > 0, "a thread that waits");
            disk.wait_until_a_write_waits();
            assert!(!reader.is_finished() && pool.statistics().free == 0);
            disk.unblock_writes();
            assert_eq!(reader.join().unwrap(), 1, "{kind}");
        });
        for page in dirty {
            assert_eq!(stored_version(&pool, page), 2);
        }
    }
}

/// All pages in memory become dirty repeatedly, and there are eight times as many pages as frames.
#[test]
fn pools_full_of_dirty_pages_make_progress_and_only_the_provider_writes() {
    for kind in kinds_of_here() {
        for (torn_pages, threads) in
            [(TornPages::Detect, 1), (TornPages::Detect, 3), (TornPages::DoubleWrite, 2)]
        {
            let builder = builder(Faulty::new(3), kind).torn_pages(torn_pages).provider_threads(threads);
            let pool = builder.open().unwrap();
            let ids = allocate(&pool, 8 * FRAMES);
            let versions: Vec<Mutex<u64>> = ids.iter().map(|_| Mutex::new(1)).collect();
            let before = pool.statistics();
            thread::scope(|scope| {
                for seed in 0..3 {
                    let (pool, ids, versions) = (&pool, &ids, &versions);
                    scope.spawn(move || {
                        let mut random = SmallRng::seed_from_u64(seed);
                        for _ in 0..scaled(1000) {
                            let index = random.random_range(0..ids.len());
                            let mut page = pool.pin_exclusive(ids[index]).unwrap();
                            let mut known = versions[index].lock().unwrap();
                            assert_eq!(version(&page, ids[index].0), *known);
                            *known += 1;
                            fill(&mut page, ids[index].0, *known);
                        }
                    });
                }
            });
            let after = pool.statistics();
            assert!(after.provider_wakeups > 0 && after.provider_written > before.provider_written);
            assert_eq!(
                after.written - before.written,
                after.provider_written - before.provider_written,
                "{kind}: other threads wrote pages"
            );
            pool.close().unwrap();
            for (id, known) in ids.iter().zip(versions) {
                assert_eq!(stored_version(&pool, *id), known.into_inner().unwrap());
            }
        }
    }
}

/// The error of a write reaches threads that need a frame, each time they ask. The provider continues by itself when storage
/// works again.
#[test]
fn errors_of_writes_reach_threads_that_need_frames_and_end_with_their_cause() {
    for kind in kinds_of_here() {
        let disk = Faulty::new(1);
        let pool = builder(disk.clone(), kind).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        disk.fail(0, 1_000_000, 0);
        let (dirty, absent) = fill_with_dirty_pages(&pool, &ids, 2);
        let failed = disk.failed();
        for _ in 0..3 {
            let error = pool.pin_shared(absent).map(drop).unwrap_err();
            assert!(
                matches!(&error, Error::Write { source, .. } if source.raw_os_error().is_some()),
                "{error}"
            );
            assert!(matches!(pool.allocate().map(drop), Err(Error::Write { .. })));
        }
        assert!(disk.failed() > failed && pool.statistics().write_failed > 0);
        // Several threads that ask at once receive it too.
        thread::scope(|scope| {
            for _ in 0..3 {
                scope
                    .spawn(|| assert!(matches!(pool.pin_shared(absent).map(drop), Err(Error::Write { .. }))));
            }
        });
        disk.fail(0, 0, 0);
        // No thread asks for a frame.
        until(|| pool.statistics().free > 0, "free frames after the disk was repaired");
        assert_eq!(stored_version(&pool, absent), 1);
        for page in dirty {
            assert_eq!(stored_version(&pool, page), 2);
        }
        pool.close().unwrap();
    }
}

/// Between failed rounds that no thread has requested, the provider waits longer and longer.
#[test]
fn a_provider_whose_writes_fail_does_not_spin() {
    let disk = Faulty::new(1);
    let pool = builder(disk.clone(), Kind::Array).open().unwrap();
    let ids = allocate(&pool, 4 * FRAMES);
    disk.fail(0, 1_000_000, 0);
    let (_, absent) = fill_with_dirty_pages(&pool, &ids, 2);
    assert!(pool.pin_shared(absent).is_err());
    let (begin, before) = (Instant::now(), pool.statistics().provider_wakeups);
    // Delays of 1, 2, 4, ... milliseconds: so there are few rounds in a given time. A busy machine has even fewer.
    thread::sleep(Duration::from_millis(300));
    let rounds = pool.statistics().provider_wakeups - before;
    let most = u64::from(begin.elapsed().as_millis().ilog2()) + 2 + begin.elapsed().as_secs();
    assert!(rounds <= most, "{rounds} rounds in {:?}", begin.elapsed());
}

/// A batch of writes is filled with pages that the clock's hand reaches later. They are clean then, and leave without a write.
#[test]
fn dirty_pages_ahead_of_the_hand_are_clean_when_it_comes() {
    const MANY: usize = 8 * FRAMES;
    for kind in kinds_of_here() {
        let pool = Pool::builder("").storage(Box::new(Faulty::new(1))).memory(MANY * PAGE);
        let pool = pool.engine(Choice::Only(kind)).open().unwrap();
        // All of them are dirty, and none was used twice.
        for _ in 0..MANY {
            drop(pool.allocate().unwrap());
        }
        until(|| pool.statistics().free > 0, "free frames");
        let statistics = pool.statistics();
        let (written, evicted) = (statistics.provider_written, statistics.evicted);
        assert!(written >= 2 * evicted && evicted > 0, "{kind}: {statistics:?}");
        pool.flush().unwrap();
        assert_eq!(pool.statistics().written, MANY as u64, "{kind}: a page was written twice");
    }
}

/// All pages are pinned, so the provider cannot evict any page. It does not hold the error back.
#[test]
fn a_pool_of_pinned_pages_says_so() {
    for kind in kinds_of_here() {
        let pool = builder(Faulty::new(1), kind).open().unwrap();
        let ids = allocate(&pool, 2 * FRAMES);
        let pinned: Vec<_> = ids[..FRAMES].iter().map(|page| pool.pin_exclusive(*page).unwrap()).collect();
        assert!(
            matches!(pool.pin_shared(ids[FRAMES]).map(drop), Err(Error::Pinned { frames: FRAMES })),
            "{kind}"
        );
        drop(pinned);
        assert_eq!(stored_version(&pool, ids[FRAMES]), 1);
    }
}

fn threads_of_providers() -> usize {
    bedplate_threads::deliverable(0, |name| name == THREAD).unwrap().0
}

/// Runs the test in a process of its own, because it counts the threads of its process. Returns true in that process.
fn alone(name: &str) -> bool {
    const CHILD: &str = "BEDPLATE_TEST_PROVIDER";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(CHILD, name)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

#[test]
fn threads_start_when_memory_is_full_and_end_with_the_pool() {
    if !alone("threads_start_when_memory_is_full_and_end_with_the_pool") {
        return;
    }
    for (kind, threads) in kinds_of_here().zip([1, 2, 8].into_iter().cycle()) {
        let pool = builder(Faulty::new(1), kind).provider_threads(threads).open().unwrap();
        let mut ids: Vec<PageId> = (0..FRAMES - 2).map(|_| pool.allocate().unwrap().page()).collect();
        assert_eq!(threads_of_providers(), 0, "{kind}: there are free frames");
        ids.extend((0..2).map(|_| pool.allocate().unwrap().page()));
        // The host's signal handlers must run on its own threads only.
        assert_eq!(bedplate_threads::deliverable(threads, |name| name == THREAD).unwrap(), (threads, 0));
        drop(pool);
        // A thread that was joined stays in the process's list for a moment.
        until(|| threads_of_providers() == 0, "the end of the threads");
    }
    let pool = builder(Faulty::new(1), Kind::Array).provider_threads(0).open().unwrap();
    allocate(&pool, 2 * FRAMES);
    assert_eq!((threads_of_providers(), pool.statistics().provider_wakeups), (0, 0));
    let error = builder(Faulty::new(1), Kind::Array).provider_threads(9).open().map(drop).unwrap_err();
    assert!(matches!(error, Error::Setting { value: 9, .. }), "{error}");
}

/// A write does not end. Dropping and closing the pool wait for that write, and for nothing else.
#[test]
fn closing_and_dropping_wait_for_a_write_and_end_the_threads() {
    for (kind, close) in kinds_of_here().flat_map(|kind| [(kind, false), (kind, true)]) {
        let disk = Blocking::new();
        let pool = builder(disk.clone(), kind).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        disk.block_writes();
        fill_with_dirty_pages(&pool, &ids, 2);
        disk.wait_until_a_write_waits();
        thread::scope(|scope| {
            let (done, is_done) = mpsc::channel();
            scope.spawn(move || {
                if close {
                    pool.close().unwrap();
                }
                drop(pool);
                done.send(()).unwrap();
            });
            let early = is_done.recv_timeout(Duration::from_millis(20)).is_ok();
            let begun = disk.begun();
            disk.unblock_writes();
            assert!(!early, "{kind}: the memory was given back while a write was in flight");
            is_done.recv_timeout(LIMIT).unwrap();
            assert!(close || disk.begun() <= begun + 1, "{kind}: a pool that is dropped begins to write");
        });
    }
}

/// The provider is waiting for its next attempt.
#[test]
fn a_pool_whose_writes_fail_can_be_dropped() {
    for kind in kinds_of_here() {
        let disk = Faulty::new(1);
        let pool = builder(disk.clone(), kind).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        disk.fail(0, 1_000_000, 0);
        let (_, absent) = fill_with_dirty_pages(&pool, &ids, 2);
        assert!(pool.pin_shared(absent).is_err());
        assert!(matches!(pool.close(), Err(Error::Write { .. })));
        in_time(move || drop(pool), || {}, "dropping the pool");
    }
}

/// Threads use the pool until it is closed, and use it again afterwards. The provider works in between.
#[test]
fn a_pool_can_be_closed_and_used_again_while_its_provider_works() {
    for kind in kinds_of_here() {
        let pool = builder(Faulty::new(1), kind).batch(1).open().unwrap();
        let ids = allocate(&pool, 2 * FRAMES);
        for round in 2..scaled(200) as u64 {
            write(&pool, &ids, round);
            pool.close().unwrap();
        }
        let wakeups = pool.statistics().provider_wakeups;
        write(&pool, &ids, 1000);
        assert!(pool.statistics().provider_wakeups > wakeups, "{kind}: the provider works after a close");
    }
}

/// A thread takes the last frame while a round of the provider ends. The provider frees frames nevertheless, before another thread
/// needs one.
#[test]
fn frames_that_are_taken_while_a_round_ends_are_replaced() {
    for kind in kinds_of_here() {
        let pool = builder(Faulty::new(1), kind).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..scaled(3000) {
            for _ in 0..random.random_range(1..6) {
                stored_version(&pool, ids[random.random_range(0..ids.len())]);
            }
            until(|| pool.statistics().free > 0, "free frames");
        }
    }
}

/// Whether all threads of providers in this process sleep.
fn providers_sleep() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let mut theirs = texts.filter(|text| text.starts_with(&format!("Name:\t{THREAD}\n")));
    theirs.all(|text| text.contains("\nState:\tS"))
}

/// Runs a check in a forked child, which reports the result by its exit status.
fn in_forked_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs the check and exits. The provider is idle, so no thread holds a lock of the pool.
    match unsafe { libc::fork() } {
        0 => {
            let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
            // SAFETY: it ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        child => {
            let mut status = -1;
            // SAFETY: the status is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status == 0
        }
    }
}

/// A forked child has no provider: its threads write and evict by themselves, and a drop of the pool waits for no thread.
#[test]
fn a_forked_child_evicts_without_the_provider() {
    if !alone("a_forked_child_evicts_without_the_provider") {
        return;
    }
    // The engine `stock` evicts with a descriptor that refers to its process, so a child cannot.
    for kind in kinds_of_here().filter(|kind| *kind != Kind::Stock) {
        let pool = builder(Faulty::new(1), kind).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        write(&pool, &ids, 2);
        // Then all pages are clean. So a thread of the provider that sleeps has ended its round, and holds no lock.
        pool.close().unwrap();
        until(|| pool.statistics().free > 0 && providers_sleep(), "free frames");
        let before = pool.statistics();
        assert!(before.provider_written > 0, "{kind}");
        // Only the child's copy of this variable is dropped.
        let pool = std::mem::ManuallyDrop::new(pool);
        let child = || {
            write(&pool, &ids, 3);
            let is_written = ids.iter().all(|page| stored_version(&pool, *page) == 3);
            let after = pool.statistics();
            let by_itself =
                after.written > before.written && after.provider_written == before.provider_written;
            let closed = pool.close().is_ok();
            // SAFETY: the child no longer uses the pool, and the parent has its own copy.
            drop(unsafe { std::ptr::read(&*pool) });
            is_written && by_itself && closed
        };
        assert!(in_forked_child(child), "{kind}");
        let pool = std::mem::ManuallyDrop::into_inner(pool);
        // The parent's provider still works.
        write(&pool, &ids, 4);
        assert!(pool.statistics().provider_written > before.provider_written);
        assert!(ids.iter().all(|page| stored_version(&pool, *page) == 4));
    }
}

/// A disk that calls a test's function before each write.
struct Watched<F>(Faulty, F);

impl<F: Fn(&[Write<'_>]) + Send + Sync> Storage for Watched<F> {
    fn read(&self, reads: &mut [Read<'_>]) {
        self.0.read(reads);
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        (self.1)(writes);
        self.0.write(writes);
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn grow(&self, pages: Range<u64>) -> io::Result<()> {
        self.0.grow(pages)
    }
}

#[test]
fn without_a_thread_of_the_provider_others_write() {
    for torn_pages in [TornPages::Detect, TornPages::DoubleWrite] {
        let panics = Arc::new(AtomicBool::new(false));
        let refuse = {
            let panics = panics.clone();
            move |_: &[Write<'_>]| {
                let is_provider = thread::current().name() == Some(THREAD);
                assert!(!is_provider || !panics.load(Ordering::Relaxed), "a test's storage panics");
            }
        };
        let disk = Watched(Faulty::new(1), refuse);
        let pool = builder(disk, Kind::Array).torn_pages(torn_pages).open().unwrap();
        let ids = allocate(&pool, 4 * FRAMES);
        panics.store(true, Ordering::Relaxed);
        let write_all = |version| {
            write(&pool, &ids, version);
            assert!(ids.iter().all(|page| stored_version(&pool, *page) == version));
        };
        in_time(|| write_all(2), || {}, "writing pages without the provider");
        assert!(pool.statistics().written > pool.statistics().provider_written);
        pool.close().unwrap();
        in_time(move || drop(pool), || {}, "dropping the pool");
    }
}

/// A log that counts the threads that make it durable.
#[derive(Default)]
struct CountingLog {
    durable: AtomicU64,
    by_provider: AtomicUsize,
    by_others: AtomicUsize,
}

impl Log for CountingLog {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn make_durable(&self, up_to: u64) -> io::Result<()> {
        let is_provider = thread::current().name() == Some(THREAD);
        let count = if is_provider { &self.by_provider } else { &self.by_others };
        count.fetch_add(1, Ordering::Relaxed);
        self.durable.fetch_max(up_to, Ordering::AcqRel);
        Ok(())
    }
}

/// Panics if a page is written before its record is durable.
fn check_log(log: &CountingLog, writes: &[Write<'_>]) {
    for write in writes.iter().filter(|write| write.page() >= 256) {
        for image in write.bytes().as_chunks::<PAGE>().0 {
            let lsn = u64::from_le_bytes(*image[8..].first_chunk().unwrap());
            assert!(lsn <= log.durable_lsn(), "page {} is written before its log", write.page());
        }
    }
}

#[test]
fn the_provider_makes_the_log_durable_before_it_writes_and_nobody_else_does() {
    for kind in kinds_of_here() {
        for torn_pages in [TornPages::Detect, TornPages::DoubleWrite] {
            let log = Arc::new(CountingLog::default());
            let check = {
                let log = log.clone();
                move |writes: &[Write<'_>]| check_log(&log, writes)
            };
            let disk = Watched(Faulty::new(1), check);
            let pool = builder(disk, kind).torn_pages(torn_pages).log(log.clone()).open().unwrap();
            let mut lsn = 0;
            let mut change = |id: Option<PageId>| {
                let mut page = id.map_or_else(|| pool.allocate(), |id| pool.pin_exclusive(id)).unwrap();
                lsn += 1;
                page.set_lsn(lsn);
                page.page()
            };
            let ids: Vec<PageId> = (0..4 * FRAMES).map(|_| change(None)).collect();
            ids.iter().for_each(|page| _ = change(Some(*page)));
            assert!(log.by_provider.load(Ordering::Relaxed) > 0);
            assert_eq!(log.by_others.load(Ordering::Relaxed), 0, "{kind}");
        }
    }
}

/// Batches are in flight together, and end in any order. Some of their writes fail.
#[test]
fn several_batches_are_in_flight_and_end_in_any_order() {
    /// Number of pages that needs several batches: a batch has 64 pages, and a 32nd of the frames is free.
    const MANY: usize = 80 * FRAMES;
    for (torn_pages, most) in [(TornPages::Detect, 4), (TornPages::DoubleWrite, 3)] {
        let disk = Queueing::new(Faulty::new(1));
        let builder = Pool::builder("").storage(Box::new(disk.clone())).memory(MANY * PAGE);
        let pool = builder.engine(Choice::Only(Kind::Array)).torn_pages(torn_pages).open().unwrap();
        let ids = allocate(&pool, MANY + MANY / 2);
        disk.hold(true);
        let (dirty, absent) = fill_with_dirty_pages(&pool, &ids, 2);
        thread::scope(|scope| {
            let reader = scope.spawn({
                let pool = &pool;
                move || version(&pool.pin_shared(absent).unwrap(), absent.0)
            });
            until(|| disk.most_in_flight() >= 2, "several batches in flight");
            disk.hold(false);
            assert_eq!(reader.join().unwrap(), 1);
        });
        disk.disk.fail(0, 20_000, 0);
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..scaled(1000) {
            let page = ids[random.random_range(0..ids.len())];
            match pool.pin_exclusive(page) {
                Ok(mut exclusive) => {
                    let before = version(&exclusive, page.0);
                    fill(&mut exclusive, page.0, before);
                }
                Err(Error::Write { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        disk.disk.fail(0, 0, 0);
        pool.close().unwrap();
        for page in dirty {
            assert_eq!(stored_version(&pool, page), 2);
        }
        let most_in_flight = disk.most_in_flight();
        assert!(most_in_flight <= most, "{most_in_flight} batches in flight, {torn_pages:?}");
    }
}
