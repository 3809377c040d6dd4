//! The guarantees of a pool to a single thread.

mod common;

use std::time::{Duration, Instant};

use bedplate_bufpool::{Error, Kind, PAGE, PageId, Redo, Restart};
use common::{builder, fill, in_guest, kinds, pool, scaled, version};

#[test]
fn pages_come_back_after_they_left_memory() {
    for kind in kinds() {
        let frames = if in_guest() { 16 } else { 64 };
        let count = 8 * frames;
        let (pool, _folder) = pool(kind, frames);
        let pages: Vec<PageId> = (0..count)
            .map(|_| {
                let mut page = pool.allocate().unwrap();
                assert!(page.iter().all(|byte| *byte == 0));
                let id = page.page();
                fill(&mut page, id.0, 7);
                id
            })
            .collect();
        for page in &pages {
            assert_eq!(version(&pool.pin_shared(*page).unwrap(), page.0), 7);
        }
        for page in pages.iter().rev() {
            let mut copy = [0; bedplate_bufpool::PAYLOAD];
            pool.optimistic_read(*page, |read| read.copy_to(&mut copy)).unwrap();
            assert_eq!(version(&copy, page.0), 7);
        }
        let statistics = pool.statistics();
        let [frames, count] = [frames, count].map(|pages| pages as u64);
        let left = count - frames;
        assert!(statistics.evicted >= 3 * left && statistics.resident <= frames, "{statistics:?}");
        assert!(statistics.written >= left && statistics.written <= count, "{statistics:?}");
    }
}

#[test]
fn a_closed_pool_opens_again_with_its_pages_roots_and_free_pages() {
    for kind in kinds() {
        let (pool, folder) = pool(kind, 64);
        // Outside the test machine, the freed pages fill several pages of the free list.
        let [count, freed] = [2000, 1500].map(scaled);
        let ids: Vec<PageId> = (0..count)
            .map(|_| {
                let mut page = pool.allocate().unwrap();
                let id = page.page();
                fill(&mut page, id.0, 1);
                id
            })
            .collect();
        for page in &ids[..freed] {
            pool.free(pool.pin_exclusive(*page).unwrap()).unwrap();
        }
        pool.set_root(3, ids[freed + 20].0);
        let in_use = pool.pages_in_use();
        assert_eq!(in_use, (count - freed) as u64);
        pool.close().unwrap();
        drop(pool);
        let pool = builder(&folder, kind, 64).open().unwrap();
        assert_eq!((pool.root(3), pool.root(0), pool.pages_in_use()), (ids[freed + 20].0, 0, in_use));
        for page in &ids[freed..] {
            assert_eq!(version(&pool.pin_shared(*page).unwrap(), page.0), 1);
        }
        // Each free page is allocated again once, before the file grows.
        let mut again: Vec<PageId> = (0..freed).map(|_| pool.allocate().unwrap().page()).collect();
        again.sort();
        assert_eq!(again, ids[..freed]);
        assert!(pool.allocate().unwrap().page() > *ids.last().unwrap());
    }
}

#[test]
fn a_pool_that_was_not_closed_opens_only_for_recovery() {
    let (pool, folder) = pool(Kind::Stock, 64);
    pool.close().unwrap();
    let page = pool.allocate().unwrap().page();
    pool.flush().unwrap();
    drop(pool);
    assert!(matches!(builder(&folder, Kind::Stock, 64).open(), Err(Error::Unclean)));
    let pool = builder(&folder, Kind::Stock, 64).recover(true).open().unwrap();
    assert!(pool.needs_recovery());
    assert!(pool.allocate().unwrap().page() > page, "what may be in use is not given out again");
    pool.close().unwrap();
    drop(pool);
    assert!(!builder(&folder, Kind::Stock, 64).open().unwrap().needs_recovery());
}

#[test]
fn a_closed_pool_that_was_not_changed_stays_closed() {
    let (pool, folder) = pool(Kind::Stock, 64);
    let page = pool.allocate().unwrap().page();
    pool.close().unwrap();
    let _ = pool.pin_shared(page).unwrap().lsn();
    let _ = pool.pin_exclusive(page).unwrap().lsn();
    pool.flush().unwrap();
    drop(pool);
    builder(&folder, Kind::Stock, 64).open().unwrap();
}

#[test]
fn optimistic_readers_notice_changes_and_nothing_else() {
    for kind in kinds() {
        let (pool, _folder) = pool(kind, 64);
        let id = pool.allocate().unwrap().page();
        let read = pool.optimistic(id).unwrap();
        assert_eq!(read.validate(), Ok(()));
        drop(pool.pin_shared(id).unwrap());
        drop(pool.pin_exclusive(id).unwrap());
        pool.flush().unwrap();
        assert_eq!(read.validate(), Ok(()), "nothing was changed");
        let locked = pool.pin_exclusive(id).unwrap();
        assert_eq!(read.validate(), Err(Restart));
        drop(locked);
        drop(read.share().unwrap());
        let mut upgraded = read.upgrade().unwrap();
        upgraded.write(0, &[1]);
        drop(upgraded);
        assert_eq!(read.validate(), Err(Restart));
        assert!(read.upgrade().is_err() && read.share().is_err());
        let read = pool.optimistic(id).unwrap();
        pool.free(pool.pin_exclusive(id).unwrap()).unwrap();
        assert_eq!(read.validate(), Err(Restart));
    }
}

#[test]
fn who_tries_to_read_waits_for_nothing() {
    for kind in kinds() {
        let (pool, _folder) = pool(kind, 16);
        let ids: Vec<_> = (0..64).map(|_| pool.allocate().unwrap().page()).collect();
        let read = pool.statistics().read;
        let at_hand = || ids.iter().filter(|page| pool.try_optimistic(**page).is_some()).count() as u64;
        // The page provider latches a page while it copies it.
        let started = Instant::now();
        while at_hand() != pool.statistics().resident {
            assert!(started.elapsed() < Duration::from_secs(60), "resident pages cannot be read");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pool.statistics().read, read);
        let held = pool.pin_exclusive(ids[0]).unwrap();
        assert!(pool.try_optimistic(ids[0]).is_none() && pool.try_optimistic(PageId(1 << 40)).is_none());
        drop(held);
        let seen = loop {
            if let Some(seen) = pool.try_optimistic(ids[0]) {
                break seen;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "the page cannot be read");
        };
        pool.pin_exclusive(ids[0]).unwrap().write(0, &[1]);
        assert!(seen.validate().is_err() && seen.upgrade().is_err());
    }
}

#[test]
fn optimistic_readers_notice_eviction() {
    for kind in kinds() {
        let (pool, _folder) = pool(kind, 64);
        let id = pool.allocate().unwrap().page();
        let read = pool.optimistic(id).unwrap();
        let evicted = pool.statistics().evicted;
        while pool.statistics().evicted < evicted + 200 {
            drop(pool.allocate().unwrap());
        }
        let _: [u8; 8] = read.read(100);
        assert_eq!(read.validate(), Err(Restart));
    }
}

#[test]
fn wrong_uses_are_errors() {
    for kind in kinds() {
        let (pool, _folder) = pool(kind, 16);
        let id = pool.allocate().unwrap().page();
        for wrong in [PageId::NONE, PageId(5), PageId(id.0 + 1), PageId(1 << 20), PageId(u64::MAX)] {
            assert!(matches!(pool.pin_shared(wrong), Err(Error::NoSuchPage { .. })));
            assert!(matches!(pool.optimistic(wrong), Err(Error::NoSuchPage { .. })));
        }
        pool.free(pool.pin_exclusive(id).unwrap()).unwrap();
        assert!(matches!(pool.free(pool.pin_exclusive(id).unwrap()), Err(Error::NoSuchPage { .. })));
        let held: Vec<_> = (0..16).map(|_| pool.allocate().unwrap()).collect();
        assert!(matches!(pool.allocate(), Err(Error::Pinned { frames: 16 })));
        drop(held);
        drop(pool.allocate().unwrap());
    }
}

#[test]
fn pages_that_only_the_log_knows_can_be_redone_and_lost_ones_reclaimed() {
    for kind in kinds() {
        let (pool, folder) = pool(kind, 64);
        let first = pool.allocate().unwrap().page();
        pool.sync().unwrap();
        drop(pool);
        let pool = builder(&folder, kind, 64).recover(true).open().unwrap();
        let later = PageId(first.0 + 9);
        let (mut page, found) = pool.pin_for_redo(later).unwrap();
        assert_eq!((found, page.lsn()), (Redo::Intact, 0));
        page.set_lsn(3);
        drop(page);
        assert_eq!(pool.pin_for_redo(later).unwrap().0.lsn(), 3);
        assert_eq!(pool.pages_in_use(), 10);
        assert_eq!(pool.reclaim(|page| page == later), 9);
        assert_eq!((pool.pages_in_use(), pool.allocate().unwrap().page()), (1, first));
    }
}

#[test]
fn a_file_is_of_one_pool_at_a_time() {
    let (pool, folder) = pool(Kind::Stock, 64);
    let error = builder(&folder, Kind::Stock, 64).open().map(drop).unwrap_err();
    assert!(error.to_string().contains("somebody else has it open"), "{error}");
    pool.close().unwrap();
    drop(pool);
    builder(&folder, Kind::Stock, 64).open().unwrap();
}

#[test]
fn room_for_a_page_takes_a_batch_of_writes() {
    for kind in kinds() {
        // The page provider would make room before it is needed.
        let folder = tempfile::tempdir().unwrap();
        let pool = builder(&folder, kind, 512).provider_threads(0).open().unwrap();
        for _ in 0..512 {
            drop(pool.allocate().unwrap());
        }
        let before = pool.statistics();
        drop(pool.allocate().unwrap());
        let after = pool.statistics();
        assert!(after.evicted > before.evicted);
        assert!(after.written - before.written <= 64, "{kind:?}: {before:?} {after:?}");
    }
}

#[test]
fn reserved_pages_can_be_allocated_and_more_than_there_are_cannot_be_reserved() {
    let (pool, folder) = pool(Kind::Stock, 32);
    let most = (1 << 30) / PAGE as u64 - 256;
    assert!(matches!(pool.reserve(most + 1), Err(Error::Full { pages }) if pages == most));
    let freed = pool.allocate().unwrap();
    pool.free(freed).unwrap();
    // The free page counts, and so does the room to which the file has grown.
    pool.reserve(10_000).unwrap();
    let len = |path: &std::path::Path| std::fs::metadata(path).unwrap().len();
    let file = folder.path().join("pool");
    let before = len(&file);
    assert!(before >= 10_000 * PAGE as u64, "{before}");
    for _ in 0..10_000 {
        drop(pool.allocate().unwrap());
    }
    assert_eq!(len(&file), before);
}
