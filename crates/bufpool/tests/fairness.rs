//! A writer gets the page although other threads hold it shared all the time.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::{kinds_of_here, pool};

/// Number of times that a holder yields while it waits for another holder, before it releases the page.
const PATIENCE: u32 = 10_000;
/// A writer that does not get the page within this number of shared acquisitions starves.
const MOST: u64 = 200_000;

/// A holder releases the page only after another thread has taken it. So the page never becomes free unless new holders
/// are kept out.
#[test]
fn a_writer_gets_its_turn_among_holders_that_overlap() {
    for kind in kinds_of_here() {
        let (pool, _folder) = pool(kind, 16);
        let page = pool.allocate().unwrap().page();
        let (acquired, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let hold = || {
            while !stop.load(Ordering::Relaxed) {
                let held = pool.pin_shared(page).unwrap();
                let mine = acquired.fetch_add(1, Ordering::AcqRel);
                let is_last = || acquired.load(Ordering::Acquire) == mine + 1;
                for _ in 0..PATIENCE {
                    if !is_last() || stop.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::yield_now();
                }
                drop(held);
                if acquired.load(Ordering::Relaxed) > MOST {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        };
        let taken = thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(hold)));
            while acquired.load(Ordering::Acquire) < 10 {
                thread::yield_now();
            }
            let before = acquired.load(Ordering::Acquire);
            let held = pool.pin_exclusive(page).unwrap();
            let taken = acquired.load(Ordering::Acquire) - before;
            stop.store(true, Ordering::Relaxed);
            drop(held);
            taken
        });
        // This thread may lose its processor between the count and the writer's first attempt. Some acquisitions may
        // occur then.
        assert!(taken < MOST / 2, "{kind}: {taken} acquisitions before the writer's turn");
        // The awaited bit is not left behind.
        assert_eq!(pool.pin_shared(page).unwrap().page(), page);
    }
}
