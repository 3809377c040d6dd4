//! A region's threads: one handles faults, and one ends the snapshots of children whose process has ended.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::region::Region;
use super::target::Target;
use crate::engine::Threads;

/// The time between two looks at whether a child has ended, while there are children.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The time between two updates of the statistics page, while there are none.
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

    /// The life of the thread that handles faults, the *handler*.
    fn handle_faults(&self) {
        while !self.is_over() {
            let mut waits = [PollFd::new(&self.descriptor, PollFlags::IN), self.end_handler.poll()];
            let _ = poll(&mut waits, None);
            self.serve_faults();
        }
    }

    /// The other thread's life.
    fn watch_children(&self) {
        let mut children = false;
        while !self.is_over() {
            let _ = poll(&mut [self.wake_up.poll()], Some(if children { &LOOK } else { &REST }));
            self.wake_up.clear();
            children = self.end_children();
            self.publish();
        }
    }

    /// Ends the snapshots of processes that are gone, and gives whether there are others.
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
            // Only this thread ends children's snapshots, so the slots are what they were.
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
