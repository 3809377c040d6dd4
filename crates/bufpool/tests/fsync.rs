//! A failed fsync. The affected pages are written again before the pool reports them as durable. If storage has lost
//! pages meanwhile, the pool detects that.

mod common;
#[path = "common/faulty.rs"]
mod faulty;

use bedplate_bufpool::storage::{Read, Storage};
use bedplate_bufpool::{Builder, Choice, Error, Kind, PAGE, PageId, Pool, Result, TornPages};
use common::{RING0, fill, kind_of_here, kinds_of_here, scaled, version};
use faulty::Faulty;

const FRAMES: usize = 64;

/// A builder without a page provider, because the provider evicts pages unasked, and most tests know which pages are in memory.
fn builder(disk: &Faulty, kind: Kind, torn_pages: TornPages) -> Builder {
    let builder = Pool::builder("").storage(Box::new(disk.clone())).torn_pages(torn_pages);
    builder.memory(FRAMES * PAGE).engine(Choice::Only(kind)).provider_threads(0)
}

/// All engines, both protections against torn pages, and whether a failed fsync makes the disk drop its writes at once.
fn all() -> impl Iterator<Item = (Kind, TornPages, bool)> {
    let ways = [TornPages::Detect, TornPages::DoubleWrite];
    kinds_of_here().flat_map(move |kind| {
        ways.into_iter().flat_map(move |way| [true, false].map(|forgets| (kind, way, forgets)))
    })
}

fn known(pool: &Pool, page: PageId) -> Result<u64> {
    pool.pin_shared(page).map(|content| version(&content, page.0))
}

/// Creates a pool with two sets of pages. In the first set, version 1 is durable, and version 2 has been written and is
/// still in memory. The second set contains the other pages.
fn written(disk: &Faulty, kind: Kind, torn_pages: TornPages) -> (Pool, Vec<PageId>, Vec<PageId>) {
    written_in(builder(disk, kind, torn_pages).open().unwrap())
}

fn written_in(pool: Pool) -> (Pool, Vec<PageId>, Vec<PageId>) {
    let fresh = |_| {
        let mut page = pool.allocate().unwrap();
        let id = page.page();
        fill(&mut page, id.0, 1);
        id
    };
    let mut ids: Vec<PageId> = (0..4 * FRAMES).map(fresh).collect();
    let others = ids.split_off(FRAMES / 2);
    pool.sync().unwrap();
    for page in &ids {
        fill(&mut pool.pin_exclusive(*page).unwrap(), page.0, 2);
    }
    pool.flush().unwrap();
    (pool, ids, others)
}

/// Uses the other pages until all earlier pages are evicted.
fn drive_out(pool: &Pool, others: &[PageId]) {
    let evicted = pool.statistics().evicted;
    while pool.statistics().evicted < evicted + 4 * FRAMES as u64 {
        for page in others {
            assert_eq!(known(pool, *page).unwrap(), 1);
        }
    }
}

fn fail_once(pool: &Pool, disk: &Faulty, forgets: bool) {
    disk.forgets(forgets);
    disk.fail(0, 0, 1_000_000);
    assert!(matches!(pool.sync(), Err(Error::Storage { .. })));
    disk.fail(0, 0, 0);
}

/// Crashes the disk, and checks that version 2 of the pages survives.
fn check_after_crash(pool: Pool, disk: &Faulty, kind: Kind, torn_pages: TornPages, ids: &[PageId]) {
    drop(pool);
    disk.crash();
    let pool = builder(disk, kind, torn_pages).recover(true).open().unwrap();
    for page in ids {
        assert_eq!(known(&pool, *page).unwrap(), 2);
    }
}

#[test]
fn the_next_sync_writes_again_what_a_failed_one_covered() {
    for (kind, torn_pages, forgets) in all() {
        let disk = Faulty::new(1);
        let (pool, ids, _) = written(&disk, kind, torn_pages);
        fail_once(&pool, &disk, forgets);
        pool.sync().unwrap();
        check_after_crash(pool, &disk, kind, torn_pages, &ids);
    }
}

/// The page provider evicts and writes while fsyncs fail. Either the disk keeps the pages until the power fails, or the pool has
/// copies.
#[test]
fn the_next_sync_writes_again_what_a_failed_one_covered_beside_the_provider() {
    for (kind, torn_pages, forgets) in all() {
        if forgets && torn_pages == TornPages::Detect {
            continue;
        }
        let disk = Faulty::new(1);
        let (pool, ids, others) =
            written_in(builder(&disk, kind, torn_pages).provider_threads(1).open().unwrap());
        disk.forgets(forgets);
        for version in 1..scaled(40) as u64 {
            disk.fail(0, 0, 1_000_000);
            assert!(pool.sync().is_err());
            disk.fail(0, 0, 0);
            for page in &others {
                assert_eq!(known(&pool, *page).unwrap(), version);
                fill(&mut pool.pin_exclusive(*page).unwrap(), page.0, version + 1);
            }
        }
        // The engine of ring 0 has no provider.
        assert!(pool.statistics().provider_written > 0 || Some(kind) == RING0, "{kind}");
        pool.sync().unwrap();
        check_after_crash(pool, &disk, kind, torn_pages, &ids);
    }
}

#[test]
fn pages_in_memory_are_written_again_before_they_leave_it() {
    for (kind, torn_pages, forgets) in all() {
        let disk = Faulty::new(1);
        let (pool, ids, others) = written(&disk, kind, torn_pages);
        fail_once(&pool, &disk, forgets);
        drive_out(&pool, &others);
        for page in &ids {
            assert_eq!(known(&pool, *page).unwrap(), 2);
        }
        pool.sync().unwrap();
        check_after_crash(pool, &disk, kind, torn_pages, &ids);
    }
}

#[test]
fn pages_that_left_memory_before_are_written_again_if_they_are_still_there() {
    for (kind, torn_pages, forgets) in all() {
        let disk = Faulty::new(1);
        let (pool, ids, others) = written(&disk, kind, torn_pages);
        drive_out(&pool, &others);
        fail_once(&pool, &disk, forgets);
        if forgets && torn_pages == TornPages::Detect {
            // The disk has version 1. The pool must not return it instead of version 2.
            for page in &ids {
                assert!(matches!(known(&pool, *page), Err(Error::Lost { page: told }) if told == *page));
                assert!(matches!(pool.optimistic(*page), Err(Error::Lost { .. })));
            }
            for _ in 0..2 {
                assert!(matches!(pool.sync(), Err(Error::Lost { .. })));
                assert!(matches!(pool.close(), Err(Error::Lost { .. })));
            }
            drop(pool);
            assert!(matches!(builder(&disk, kind, torn_pages).open(), Err(Error::Unclean)));
            continue;
        }
        for page in &ids {
            assert_eq!(known(&pool, *page).unwrap(), 2);
        }
        pool.sync().unwrap();
        check_after_crash(pool, &disk, kind, torn_pages, &ids);
    }
}

/// The copies of the last batch are in a region that is about to be overwritten.
#[test]
fn a_batch_whose_places_were_forgotten_is_put_there_again() {
    for kind in kinds_of_here() {
        let disk = Faulty::new(1);
        let (pool, ids, others) = written(&disk, kind, TornPages::DoubleWrite);
        drive_out(&pool, &others);
        disk.forgets(true);
        disk.fail(0, 0, 1_000_000);
        pool.pin_exclusive(others[0]).unwrap().set_lsn(0);
        assert!(matches!(pool.flush(), Err(Error::Write { .. })));
        disk.fail(0, 0, 0);
        // Two batches, which use both regions.
        for page in [others[0], others[FRAMES]] {
            pool.pin_exclusive(page).unwrap().set_lsn(0);
            pool.flush().unwrap();
        }
        for page in &ids {
            assert_eq!(known(&pool, *page).unwrap(), 2);
        }
        pool.sync().unwrap();
        check_after_crash(pool, &disk, kind, TornPages::DoubleWrite, &ids);
    }
}

/// After a failed fsync, the pool writes the same superblock again, because only the other one is durable.
#[test]
fn a_durable_record_is_not_written_over_before_another_one_is_durable() {
    let disk = Faulty::new(1);
    let kind = kind_of_here();
    let (pool, ids, _) = written(&disk, kind, TornPages::Detect);
    pool.close().unwrap();
    let records = || {
        let mut images = Box::new([[0; PAGE]; 2]);
        let mut reads: Vec<_> =
            (0..2).zip(images.iter_mut()).map(|(page, image)| Read::into_image(page, image)).collect();
        disk.read(&mut reads);
        images
    };
    let before = records();
    disk.fail(0, 0, 1_000_000);
    for _ in 0..4 {
        // The superblock has to be written before a page is written.
        pool.pin_exclusive(ids[0]).unwrap().set_lsn(0);
        assert!(pool.flush().is_err());
        let now = records();
        assert_eq!((0..2).filter(|copy| now[*copy] != before[*copy]).count(), 1);
    }
    disk.fail(0, 0, 0);
    pool.sync().unwrap();
    check_after_crash(pool, &disk, kind, TornPages::Detect, &ids);
}
