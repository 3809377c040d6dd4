//! Read-ahead: the thread that requests it waits for nothing. A thread that needs a page waits for that page only.
//! Frames become free again.

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/slow.rs"]
mod slow;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bedplate_bufpool::{Choice, Kind, PAGE, PageId, Pool};
use common::{fill, kinds_of_here, version};
use slow::Slow;

const FRAMES: usize = 32;
/// Longer than the time after which a pool with pinned pages returns an error.
const LONG: Duration = Duration::from_millis(2500);
/// Time to wait for an event that must not happen.
const SHORT: Duration = Duration::from_millis(50);
/// Time within which every expected event must happen.
const ENOUGH: Duration = Duration::from_secs(60);

/// Opens a pool without a page provider, because the provider frees frames unasked, and these tests count them.
fn open(disk: &Slow, kind: Kind) -> Pool {
    let builder = Pool::builder("").storage(Box::new(disk.clone())).provider_threads(0);
    builder.memory(FRAMES * PAGE).engine(Choice::Only(kind)).open().unwrap()
}

/// Creates a pool with no page in memory, and pages in storage.
fn stored(kind: Kind) -> (Pool, Slow, Vec<PageId>) {
    let disk = Slow::new();
    let pool = open(&disk, kind);
    let fresh = |_| {
        let mut page = pool.allocate().unwrap();
        let id = page.page();
        fill(&mut page, id.0, 1);
        id
    };
    let ids = (0..4 * FRAMES).map(fresh).collect();
    pool.close().unwrap();
    drop(pool);
    (open(&disk, kind), disk, ids)
}

/// Runs `f`, which must end soon. The test fails if it does not, instead of waiting forever.
fn soon<T: Send>(what: &str, disk: &Slow, ids: &[PageId], f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (told, done) = mpsc::channel();
        scope.spawn(move || told.send(f()));
        done.recv_timeout(ENOUGH).unwrap_or_else(|_| {
            disk.open(ids);
            panic!("{what} waits");
        })
    })
}

fn check(pool: &Pool, page: PageId) {
    assert_eq!(version(&pool.pin_shared(page).unwrap(), page.0), 1);
}

#[test]
fn a_reader_waits_for_its_page_only() {
    for kind in kinds_of_here() {
        let (pool, disk, ids) = stored(kind);
        disk.shut(&ids[..8]);
        soon("who asks", &disk, &ids, || pool.prefetch(&ids[..8]));
        assert_eq!(pool.statistics().read, 0);
        soon("who needs another page", &disk, &ids, || check(&pool, ids[20]));
        disk.open(&ids[..1]);
        soon("who needs the first page", &disk, &ids, || check(&pool, ids[0]));
        thread::scope(|scope| {
            let (told, done) = mpsc::channel();
            let (pool, last) = (&pool, ids[7]);
            scope.spawn(move || {
                check(pool, last);
                told.send(()).unwrap();
            });
            assert!(done.recv_timeout(SHORT).is_err(), "it has not been read");
            disk.open(&ids);
            done.recv_timeout(ENOUGH).unwrap();
        });
        ids[..8].iter().for_each(|page| check(&pool, *page));
        assert_eq!(pool.statistics().read, 9, "nothing was read twice");
    }
}

#[test]
fn who_fetches_waits_for_what_others_do_not_bring_in() {
    for kind in kinds_of_here() {
        let (pool, disk, ids) = stored(kind);
        disk.shut(&ids[..4]);
        pool.prefetch(&ids[..4]);
        soon("who fetches others", &disk, &ids, || pool.fetch(&ids[..8]));
        assert_eq!(pool.statistics().read, 4);
        disk.shut(&ids[8..12]);
        thread::scope(|scope| {
            let (told, done) = mpsc::channel();
            let (pool, pages) = (&pool, &ids[8..16]);
            scope.spawn(move || {
                pool.fetch(pages);
                told.send(()).unwrap();
            });
            assert!(done.recv_timeout(SHORT).is_err(), "they have not been read");
            disk.open(&ids);
            done.recv_timeout(ENOUGH).unwrap();
        });
        ids[..16].iter().for_each(|page| check(&pool, *page));
        assert_eq!(pool.statistics().read, 16, "nothing was read twice");
    }
}

/// Half of the frames wait for storage, longer than the pool's patience. The other half are held.
#[test]
fn what_is_on_its_way_is_room_for_those_who_wait() {
    for kind in kinds_of_here() {
        let (pool, disk, ids) = stored(kind);
        disk.shut(&ids[..FRAMES]);
        pool.prefetch(&ids[..FRAMES]);
        let others = &ids[FRAMES..];
        // These are more pages than the free half of the frames. They are used one after another.
        others.iter().for_each(|page| check(&pool, *page));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(LONG);
                disk.open(&ids);
            });
            let held: Vec<_> = others[..FRAMES].iter().map(|page| pool.pin_shared(*page).unwrap()).collect();
            assert_eq!(held.len(), FRAMES);
        });
        assert_eq!(pool.statistics().resident, FRAMES as u64);
    }
}

#[test]
fn where_there_is_no_room_nothing_is_read() {
    for kind in kinds_of_here() {
        let (pool, disk, ids) = stored(kind);
        let held: Vec<_> = ids[..FRAMES].iter().map(|page| pool.pin_shared(*page).unwrap()).collect();
        let before = pool.statistics();
        soon("who asks", &disk, &ids, || pool.prefetch(&ids[FRAMES..]));
        soon("who fetches", &disk, &ids, || pool.fetch(&ids[FRAMES..]));
        assert_eq!(pool.statistics(), before);
        drop(held);
        // The same holds if a frame could be freed only by a write.
        for page in &ids[..FRAMES] {
            pool.pin_exclusive(*page).unwrap().set_lsn(1);
        }
        pool.prefetch(&ids[FRAMES..]);
        pool.fetch(&ids[FRAMES..]);
        let after = pool.statistics();
        assert_eq!((after.read, after.written), (before.read, before.written));
    }
}

#[test]
fn a_pool_that_is_dropped_gives_its_memory_back_when_nothing_is_written_to_it() {
    for kind in kinds_of_here() {
        let (pool, disk, ids) = stored(kind);
        disk.shut(&ids[..8]);
        pool.prefetch(&ids[..8]);
        thread::scope(|scope| {
            let (told, done) = mpsc::channel();
            scope.spawn(move || {
                drop(pool);
                told.send(()).unwrap();
            });
            // The thread is reading one of the pages, or has not begun.
            let early = done.recv_timeout(SHORT).is_ok();
            disk.open(&ids);
            assert!(early || done.recv_timeout(ENOUGH).is_ok());
        });
        let pool = open(&disk, kind);
        check(&pool, ids[0]);
    }
}

/// Signal handlers of the host program must run on its own threads.
#[test]
fn the_thread_that_reads_ahead_takes_no_signals() {
    let (pool, _folder, ids) = common::stored(Kind::Hashtable, 16, 32);
    pool.prefetch(&ids[..8]);
    while pool.statistics().read < 8 {
        std::thread::yield_now();
    }
    let (threads, signals) = bedplate_threads::deliverable(1, |name| name.starts_with("bufpool-")).unwrap();
    assert!(threads > 0);
    assert_eq!(signals, 0);
}
