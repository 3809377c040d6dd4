//! The thread that folds when snapshots have ended, and makes the next one's tables.

use std::sync::atomic::Ordering;

use rustix::event::poll;
use rustix::time::Timespec;

use super::fold::Folded;
use super::region::Region;
use crate::region::{BlockedSignals, Thread, Threaded, now};

/// The time between two looks at whether a child has ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The time after which it is tried again when there was no memory.
const LATER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The time between two looks at whether there are tables to make, and the longest that it goes on with that.
const REST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const ROUND_NS: u64 = 50_000_000;

impl Threaded for Region {
    fn threads(&self) -> Vec<Thread<Self>> {
        vec![Thread { name: "bedplate-keep", life: Box::new(Self::keep) }]
    }

    fn end_threads(&self) {
        self.over.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl Region {
    /// The thread's life.
    fn keep(&self) {
        // As it was started.
        let blocked = BlockedSignals::new();
        let mut rest = &REST;
        loop {
            let _ = poll(&mut [self.bell.poll()], Some(rest));
            self.bell.answer();
            rest = self.fold_what_can_be(&blocked);
            let begin = now();
            self.prepare_until(|| {
                // Others may be waiting for the state's lock.
                std::thread::yield_now();
                self.is_over() || now() - begin > ROUND_NS
            });
            if self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Gives the time after which it is to be looked again.
    fn fold_what_can_be(&self, blocked: &BlockedSignals) -> &'static Timespec {
        while !self.is_over() {
            match self.fold_some(blocked) {
                // Others may be waiting for the state's lock.
                Ok(Folded::Some) => std::thread::yield_now(),
                Ok(Folded::All) => return &REST,
                Ok(Folded::Waits) => return &LOOK,
                Err(_) => return &LATER,
            }
        }
        &REST
    }
}
