//! A region's threads. One handles faults, and one ends the snapshots of children that have ended.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::region::Region;
use super::target::Target;
use crate::engine::Threads;

/// The interval between two checks for ended children, while there are children.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The interval between two updates of the statistics page, while there are no children.
const REST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

impl Threads for Region {
    fn names(&self) -> &'static [&'static str] {
        &["bedplate-fault", "bedplate-ends"]
    }

    fn run_thread(&self, number: usize) {
        if number == 0 { self.handle_faults() } else { self.watch_children() }
    }

    fn threads_run(&self) {
        self.served.store(true, Ordering::Release);
    }

    fn end_threads(&self) {
        self.over.store(true, Ordering::Release);
        self.end_handler.notify();
        self.wake_up.notify();
    }
}

impl Region {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The main loop of the thread that handles faults, the *handler*.
    fn handle_faults(&self) {
        while !self.is_over() {
            let mut waits = [PollFd::new(&self.descriptor, PollFlags::IN), self.end_handler.poll()];
            let _ = poll(&mut waits, None);
            self.serve_faults();
        }
    }

    /// The main loop of the other thread.
    fn watch_children(&self) {
        let mut children = false;
        while !self.is_over() {
            let _ = poll(&mut [self.wake_up.poll()], Some(if children { &LOOK } else { &REST }));
            self.wake_up.clear();
            children = self.end_children();
            self.publish();
        }
    }

    /// Ends the snapshots of children that have ended. Returns whether there are other children.
    fn end_children(&self) -> bool {
        let (mut gone, mut children) = (0u32, 0);
        {
            let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            for (number, slot) in open.numbered() {
                if let Target::Child(child) = &slot.target {
                    children += 1;
                    gone |= u32::from(!child.is_there(self)) << number;
                }
            }
        }
        if gone != 0 {
            // Only this thread ends children's snapshots, so the slots have not changed.
            let mut snapshots = self.close();
            for (number, slot) in snapshots.slots.iter_mut().enumerate() {
                if gone >> number & 1 != 0 {
                    *slot = None;
                }
            }
        }
        children > gone.count_ones()
    }
}
