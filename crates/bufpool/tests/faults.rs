//! Storage with failures: callers get errors, and no data is lost.

mod common;
#[path = "common/faulty.rs"]
mod faulty;

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_bufpool::{Builder, Choice, Damage, Error, Kind, PAGE, PageId, Pool, TornPages};
use common::{fill, kinds_of_here, scaled, version};
use faulty::Faulty;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const FRAMES: usize = 64;

fn builder(disk: &Faulty, kind: Kind) -> Builder {
    Pool::builder("").storage(Box::new(disk.clone())).memory(FRAMES * PAGE).engine(Choice::Only(kind))
}

fn again<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match attempt() {
            Ok(result) => return result,
            Err(Error::Read { source, .. } | Error::Write { source, .. }) => {
                assert!(matches!(source.raw_os_error(), Some(libc::EIO | libc::ENOSPC)) || is_torn(&source));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether the error says why other pages of the same batch were not written.
fn is_torn(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.to_string().contains("os error")
}

/// There are eight times as many pages as frames. One of fifty reads and writes fails.
#[test]
fn failing_reads_and_writes_lose_nothing() {
    for (kind, torn_pages) in
        kinds_of_here().flat_map(|kind| [(kind, TornPages::Detect), (kind, TornPages::DoubleWrite)])
    {
        let disk = Faulty::new(7);
        let pool = builder(&disk, kind).torn_pages(torn_pages).open().unwrap();
        let ids: Vec<PageId> = (0..8 * FRAMES)
            .map(|_| {
                let mut page = pool.allocate().unwrap();
                let id = page.page();
                fill(&mut page, id.0, 1);
                id
            })
            .collect();
        disk.fail(20_000, 20_000, 0);
        let versions: Vec<Mutex<u64>> = ids.iter().map(|_| Mutex::new(1)).collect();
        let failures = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (pool, ids, versions, failures) = (&pool, &ids, &versions, &failures);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed);
                    for _ in 0..scaled(4000) {
                        let index = random.random_range(0..ids.len());
                        // The test takes its own lock after the pool's, always in this order.
                        let Ok(mut page) = pool.pin_exclusive(ids[index]) else {
                            failures.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        let mut known = versions[index].lock().unwrap();
                        assert_eq!(version(&page, ids[index].0), *known);
                        if random.random() {
                            *known += 1;
                            fill(&mut page, ids[index].0, *known);
                        }
                    }
                });
            }
        });
        assert!(failures.load(Ordering::Relaxed) > 0 && disk.failed() > scaled(100) as u64);
        let statistics = pool.statistics();
        assert!(statistics.read_failed > 0 && statistics.write_failed > 0, "{statistics:?}");
        again(|| pool.flush());
        disk.fail(0, 0, 0);
        pool.close().unwrap();
        drop(pool);
        let pool = builder(&disk, kind).open().unwrap();
        for (id, known) in ids.iter().zip(versions) {
            assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), known.into_inner().unwrap());
        }
    }
}

#[test]
fn a_full_disk_is_told_and_dirty_pages_stay() {
    for (kind, threads) in kinds_of_here().flat_map(|kind| [(kind, 0), (kind, 1)]) {
        let disk = Faulty::new(1);
        let pool = builder(&disk, kind).provider_threads(threads).open().unwrap();
        let mut ids = Vec::new();
        let mut put = |id: PageId| ids.push(id);
        for number in 0..FRAMES {
            let mut page = pool.allocate().unwrap();
            let id = page.page();
            fill(&mut page, id.0, 5);
            put(id);
            if number == 0 {
                drop(page);
                // The disk says that the pool is open. The first page is dirty again.
                pool.flush().unwrap();
                pool.pin_exclusive(id).unwrap().set_lsn(0);
                disk.fail(0, 1_000_000, 0);
            }
        }
        assert!(matches!(pool.allocate(), Err(Error::Write { .. })));
        assert!(matches!(pool.flush(), Err(Error::Write { .. })));
        assert!(matches!(pool.sync(), Err(Error::Write { .. })));
        assert!(matches!(pool.close(), Err(Error::Write { .. })));
        // Pages in memory can be used.
        for id in &ids {
            assert_eq!(version(&pool.pin_exclusive(*id).unwrap(), id.0), 5);
        }
        disk.fail(0, 0, 0);
        drop(pool.allocate().unwrap());
        pool.close().unwrap();
        drop(pool);
        let pool = builder(&disk, kind).open().unwrap();
        for id in &ids {
            assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 5);
        }
    }
}

#[test]
fn damaged_and_misplaced_pages_are_told_by_name() {
    for (kind, together) in kinds_of_here().flat_map(|kind| [(kind, false), (kind, true)]) {
        let disk = Faulty::new(1);
        let pool = builder(&disk, kind).open().unwrap();
        let [one, two, three] = [1, 2, 3].map(|number| {
            let mut page = pool.allocate().unwrap();
            page.write(0, &[number]);
            page.page()
        });
        pool.close().unwrap();
        drop(pool);
        disk.damage(one.0);
        disk.misplace(three.0, two.0);
        let pool = builder(&disk, kind).open().unwrap();
        let damage = |page: PageId| match pool.pin_shared(page) {
            Err(Error::Damaged { page: told, damage }) if told == page => damage,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("page {page} is intact"),
        };
        if together {
            pool.fetch(&[one, two, three]);
            assert_eq!((pool.statistics().read, pool.statistics().resident), (1, 1));
        } else {
            pool.prefetch(&[one, two, three]);
        }
        assert_eq!(damage(one), Damage::Checksum);
        assert_eq!(damage(two), Damage::Identity { found: three });
        assert_eq!(pool.pin_shared(three).unwrap()[0], 3);
        assert!(matches!(pool.optimistic(one), Err(Error::Damaged { .. })));
        // The frames of pages that could not be read are not lost.
        assert_eq!(pool.statistics().resident, 1);
    }
}

#[test]
fn fetched_pages_are_in_memory() {
    for kind in kinds_of_here() {
        let (pool, _folder, ids) = common::stored(kind, FRAMES, 2 * FRAMES);
        let (wanted, foreign) = (&ids[..FRAMES / 4], [PageId(0), PageId(1 << 40)]);
        pool.fetch(&[wanted, wanted, &foreign].concat());
        let read = wanted.len() as u64;
        assert_eq!((pool.statistics().read, pool.statistics().resident), (read, read));
        // Pages in memory are not read again. Absent pages are read, and evict others if necessary.
        for some in ids.chunks(7).chain(ids.chunks(FRAMES)) {
            let evicted = pool.statistics().evicted;
            pool.fetch(some);
            let fetched = pool.statistics().read;
            for id in some {
                assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 3);
            }
            let statistics = pool.statistics();
            assert!(statistics.resident <= FRAMES as u64 && statistics.read_failed == 0);
            // The page provider may evict a page before it is read here.
            let read_again = statistics.read - fetched;
            let is_there = read_again <= statistics.evicted - evicted;
            assert!(some.len() > 7 || is_there, "{kind}: {fetched}, {evicted}, {statistics:?}");
        }
    }
}

#[test]
fn prefetched_pages_are_in_memory() {
    for kind in kinds_of_here() {
        let (pool, _folder, ids) = common::stored(kind, FRAMES, 2 * FRAMES);
        let (wanted, foreign) = (&ids[..FRAMES / 2], [PageId(0), PageId(1 << 40)]);
        pool.prefetch(&[wanted, wanted, &foreign].concat());
        let read = wanted.len() as u64;
        while pool.statistics().read < read {
            std::thread::yield_now();
        }
        assert_eq!(pool.statistics().read, read);
        for id in wanted {
            assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 3);
        }
        assert_eq!(pool.statistics().read, read);
        pool.prefetch(&ids);
        assert!(pool.statistics().resident <= FRAMES as u64);
        for id in &ids {
            assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 3);
        }
    }
}
