//! Guarantees of the `ring0` engine only: evictions without shootdowns and system calls, threads that enter ring 0 on
//! demand, and stale translations that are noticed.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bedplate_bufpool::storage::{Read, Storage, Write};
use bedplate_bufpool::{Choice, Error, Kind, PAGE, PageId, Pool};
use bedplate_ring0::{Cpu, Process, is_ring0};
use common::{fill, in_guest, pool, version};

/// Held by each test. All tests run in one process, and they count events of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Leaves the test if there is no ring 0. Otherwise no other test runs until the result is dropped.
macro_rules! ring0_or_skip {
    () => {{
        if !in_guest() {
            eprintln!("skipped: needs ring 0 of a real processor, or of the test machine (BEDPLATE_VM=1)");
            return;
        }
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }};
}

/// Number of shootdown interrupts between processors.
fn interrupts() -> u64 {
    Process::current().map_or(0, |process| process.shootdown_statistics().interrupts)
}

/// Allocates pages, each with unique content.
fn pages(pool: &Pool, count: u64) -> Vec<PageId> {
    let fresh = |_| {
        let mut page = pool.allocate().unwrap();
        let id = page.page();
        fill(&mut page, id.0, 1);
        id
    };
    (0..count).map(fresh).collect()
}

#[test]
fn where_there_is_no_ring_0_it_says_so() {
    if in_guest() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let opened = common::builder(&folder, Kind::Ring0, 64).open();
    // If this machine has ring 0, there is nothing to check.
    match opened.map(drop) {
        Err(Error::Unavailable { engine: Kind::Ring0, reason }) => assert!(!reason.is_empty()),
        Err(error) => panic!("{error}"),
        Ok(()) => {}
    }
}

#[test]
fn pages_are_replaced_without_interrupts_and_almost_without_system_calls() {
    let _alone = ring0_or_skip!();
    const FRAMES: usize = 64;
    let (pool, _folder) = pool(Kind::Ring0, FRAMES);
    let ids = pages(&pool, 8 * FRAMES as u64);
    pool.flush().unwrap();
    // This thread is in ring 0, because it has touched pages.
    assert!(is_ring0());
    let cpu = Cpu::current().unwrap();
    let mut fewest = u64::MAX;
    for _ in 0..20 {
        let (before, read, sent) = (cpu.statistics(), pool.statistics().read, interrupts());
        for id in &ids {
            assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 1);
        }
        let (after, read) = (cpu.statistics() - before, pool.statistics().read - read);
        println!("{read} pages read, {after:?}");
        assert!(read >= 7 * FRAMES as u64);
        assert_eq!((after.interrupts, after.page_faults, interrupts() - sent), (0, 0, 0));
        fewest = fewest.min(after.exits * 100 / read);
    }
    // The kernel's thread sleeps when it gets no processor for a while, and a system call wakes it. So on a busy
    // machine, some rounds have many exits. But a system call for each page would cause one exit for each page in every
    // round.
    assert!(fewest < 50, "{fewest} exits for 100 pages at least");
}

/// Two processors evict each other's pages, so both have stale translations all the time.
#[test]
fn old_translations_are_noticed_and_mended() {
    let _alone = ring0_or_skip!();
    const FRAMES: usize = 16;
    let pool = Pool::builder("").storage(Box::new(Ram::default()));
    let pool = pool.memory(FRAMES * PAGE).engine(Choice::Only(Kind::Ring0)).open().unwrap();
    let ids = pages(&pool, 2 * FRAMES as u64);
    let (stop, sent) = (AtomicBool::new(false), interrupts());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for id in &ids {
                    assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 1);
                }
            }
        });
        for round in 0..2000 {
            // Reads in reverse order, and not all pages.
            for id in ids.iter().rev().step_by(1 + round % 3) {
                assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 1);
            }
            if pool.statistics().stale > 50 {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let statistics = pool.statistics();
    println!("{statistics:?}");
    assert!(statistics.stale > 0);
    assert_eq!(interrupts(), sent);
}

#[test]
fn threads_that_leave_ring_0_come_back_with_the_page_they_hold() {
    let _alone = ring0_or_skip!();
    let (pool, _folder) = pool(Kind::Ring0, 64);
    let ids = pages(&pool, 128);
    for id in &ids {
        let mut page = pool.pin_exclusive(*id).unwrap();
        Process::current().unwrap().leave();
        assert!(!is_ring0());
        assert_eq!(version(&page, id.0), 1);
        assert!(is_ring0());
        fill(&mut page, id.0, 2);
        Process::current().unwrap().leave();
    }
    for id in &ids {
        let read = pool.optimistic_read(*id, |page| u64::from_ne_bytes(page.read(0))).unwrap();
        assert_eq!(read ^ 2, (id.0 << 40));
    }
}

#[test]
fn several_pools_have_addresses_of_their_own_and_give_them_back() {
    let _alone = ring0_or_skip!();
    // At most 16 pools can exist at once, and the loop opens 18.
    for _ in 0..9 {
        let pools = [pool(Kind::Ring0, 16), pool(Kind::Ring0, 600)];
        for (pool, _) in &pools {
            let ids = pages(pool, 20);
            for id in ids {
                assert_eq!(version(&pool.pin_shared(id).unwrap(), id.0), 1);
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let much = Pool::builder(folder.path().join("pool")).capacity(1 << 40).engine(Choice::Only(Kind::Ring0));
    assert!(matches!(much.open().map(drop), Err(Error::Unavailable { .. })));
}

/// Storage in memory, without system calls.
#[derive(Default)]
struct Ram(Mutex<Vec<[u8; PAGE]>>);

impl Storage for Ram {
    fn read(&self, reads: &mut [Read<'_>]) {
        let pages = self.0.lock().unwrap();
        for read in reads {
            let image = pages.get(read.page() as usize).unwrap_or(&[0; PAGE]);
            read.fill(image);
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        let mut pages = self.0.lock().unwrap();
        for write in writes {
            for (index, image) in write.bytes().as_chunks::<PAGE>().0.iter().enumerate() {
                pages[write.page() as usize + index] = *image;
            }
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn grow(&self, pages: std::ops::Range<u64>) -> std::io::Result<()> {
        self.0.lock().unwrap().resize(pages.end as usize, [0; PAGE]);
        Ok(())
    }
}
