//! The thread that merges when snapshots have ended, and that drops detached tables which no thread reads.

use std::sync::atomic::Ordering;

use bedplate_threads::BlockedSignals;
use rustix::event::poll;
use rustix::time::Timespec;

use super::merge_back::Merged;
use super::region::Region;
use crate::engine::Threads;

/// The interval between two checks for the end of a child.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The time until the next attempt after a lack of memory.
const LATER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

impl Threads for Region {
    fn names(&self) -> &'static [&'static str] {
        &["bedplate-merge"]
    }

    fn run_thread(&self, _number: usize) {
        self.work();
    }

    fn end_threads(&self) {
        self.over.store(true, Ordering::Release);
        self.wake_up.notify();
    }
}

impl Region {
    /// The main loop of the thread.
    fn work(&self) {
        // The thread was started with all signals blocked.
        let blocked = BlockedSignals::all();
        let mut rest = None;
        loop {
            let _ = poll(&mut [self.wake_up.poll()], rest);
            self.wake_up.clear();
            rest = self.merge_what_can_be(&blocked);
            if self.is_over() {
                return;
            }
            self.drop_detached_tables();
        }
    }

    /// Drops detached tables while children are alive. When they have ended, merging puts the tables back.
    fn drop_detached_tables(&self) {
        loop {
            let part = {
                let mut state = self.lock();
                if !state.has_snapshots() {
                    state.detached = 0..0;
                }
                state.detached.clone()
            };
            if part.is_empty() || self.is_over() {
                return;
            }
            let next = self.drop_some_detached(part.clone());
            // No other snapshot begins with these pages while children are alive. If the last child has ended
            // meanwhile, and everything was merged, this drops entries that the next access finds in the file
            // again.
            self.lock().detached.start = next.unwrap_or(part.end);
            self.give_way();
        }
    }

    /// Whether a snapshot is active. Also publishes this.
    fn lives_on(&self) -> bool {
        let mut state = self.lock();
        let has_snapshots = state.has_snapshots();
        self.publish(&state);
        has_snapshots
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Merges while it can. Returns the time until the next attempt, or `None` if only the begin or end of a
    /// snapshot requires one.
    fn merge_what_can_be(&self, blocked: &BlockedSignals) -> Option<&'static Timespec> {
        while !self.is_over() {
            match self.merge_some(blocked) {
                Ok(Merged::Some) => self.give_way(),
                // Children may be alive for which no memory was in use at their fork. In a pinned region, a page
                // that is used for the first time may get a page of the file.
                Ok(Merged::All) => return (self.lives_on() || self.is_pinned()).then_some(&LATER),
                Ok(Merged::Waits) => return Some(&LOOK),
                Err(_) => return Some(&LATER),
            }
        }
        None
    }
}
