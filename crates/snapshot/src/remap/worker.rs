//! The thread that merges when snapshots have ended, and drops tables that were detached when nobody reads them.

use std::sync::atomic::Ordering;

use bedplate_threads::BlockedSignals;
use rustix::event::poll;
use rustix::time::Timespec;

use super::merge_back::Merged;
use super::region::Region;
use crate::engine::Threads;

/// The time between two looks at whether a child has ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The time after which it is tried again when there was no memory.
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
    /// The thread's life.
    fn work(&self) {
        // As it was started.
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

    /// While children live; when they have ended, merging puts it back.
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
            // No other snapshot begins with these pages while children live. If the last child has ended meanwhile, and all
            // was merged, this drops entries that the next use finds again in the file.
            self.lock().detached.start = next.unwrap_or(part.end);
            self.give_way();
        }
    }

    /// Whether a snapshot is active. The page says so, too.
    fn lives_on(&self) -> bool {
        let mut state = self.lock();
        let has_snapshots = state.has_snapshots();
        self.publish(&state);
        has_snapshots
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Gives the time after which it is to be looked again, unless that is when a snapshot begins or ends.
    fn merge_what_can_be(&self, blocked: &BlockedSignals) -> Option<&'static Timespec> {
        while !self.is_over() {
            match self.merge_some(blocked) {
                Ok(Merged::Some) => self.give_way(),
                // Children may live, and nothing of the memory was in use when they were forked. In a pinned region, a
                // page that is used for the first time may get a page of the file.
                Ok(Merged::All) => return (self.lives_on() || self.is_pinned()).then_some(&LATER),
                Ok(Merged::Waits) => return Some(&LOOK),
                Err(_) => return Some(&LATER),
            }
        }
        None
    }
}
