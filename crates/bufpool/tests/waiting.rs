//! A thread that waits for a page that another thread reads in leaves its processor to others, and evicts no page.

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/slow.rs"]
mod slow;

use std::thread;
use std::time::Duration;

use bedplate_bufpool::{Choice, Kind, PAGE, PageId, Pool};
use common::{fill, in_guest, kinds_of_here, version};
use slow::Slow;

const FRAMES: usize = 16;
/// The delay of the storage. On an emulated processor, a sleep uses a noticeable part of it, and more in ring 0.
fn long() -> Duration {
    Duration::from_secs(if in_guest() { 3 } else { 1 })
}

/// Opens a pool without a page provider, because the provider frees frames unasked, and these tests count them.
fn open(disk: &Slow, kind: Kind) -> Pool {
    let builder = Pool::builder("").storage(Box::new(disk.clone())).provider_threads(0);
    builder.memory(FRAMES * PAGE).engine(Choice::Only(kind)).open().unwrap()
}

/// The processor time that this thread has used.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes only to `time`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn check(pool: &Pool, page: PageId) {
    assert_eq!(version(&pool.pin_shared(page).unwrap(), page.0), 1);
}

#[test]
fn whoever_waits_for_a_page_leaves_the_processor_to_others() {
    for kind in kinds_of_here() {
        let disk = Slow::new();
        let pool = open(&disk, kind);
        let fresh = |_| {
            let mut page = pool.allocate().unwrap();
            let id = page.page();
            fill(&mut page, id.0, 1);
            id
        };
        let ids: Vec<PageId> = (0..=FRAMES).map(fresh).collect();
        pool.close().unwrap();
        drop(pool);
        let pool = open(&disk, kind);
        // One frame is free, for the page that all threads need.
        ids[2..].iter().for_each(|page| check(&pool, *page));
        let (wanted, evicted) = (ids[0], pool.statistics().evicted);
        disk.shut(&[wanted]);
        let waited: Vec<Duration> = thread::scope(|scope| {
            let wait = || {
                // The time to enter ring 0 does not count as waiting.
                check(&pool, ids[5]);
                let before = used();
                check(&pool, wanted);
                used() - before
            };
            let mut waiting = vec![scope.spawn(wait)];
            // If two threads miss a page at the same time, both take a frame for it. So the others start later.
            disk.wait_until_asked();
            waiting.extend((0..2).map(|_| scope.spawn(wait)));
            thread::sleep(long());
            disk.open(&ids);
            waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        println!("{kind}: {waited:?}");
        assert!(waited.iter().sum::<Duration>() < long() * 2 / 3, "{kind}: {waited:?}");
        assert_eq!(pool.statistics().evicted, evicted, "{kind}");
    }
}
