//! Ends the snapshots of forked children that have ended.
//!
//! A child holds one end of a pipe, and the parent the other, on which a thread of the parent waits. A snapshot therefore ends
//! however its child ends, even if there never was a child. The thread does not allocate while it runs, because a process forks
//! while its allocator's locks are held.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::frames::unavailable;
use super::protocol::MOST;
use super::{arena::Region, task};
use crate::Error;

const NONE: i32 = -1;
/// The interval between updates of the statistics if no child ends.
const PUBLISH: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The thread's state. See the module.
#[derive(Debug)]
pub struct Reaper {
    /// The descriptors of the children's pipes, by the slots of their snapshots.
    pipes: [AtomicI32; MOST],
    wake_up: OwnedFd,
}

impl Reaper {
    pub fn new() -> Result<Self, Error> {
        let wake_up = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("making an eventfd"))?;
        Ok(Self { pipes: [const { AtomicI32::new(NONE) }; MOST], wake_up })
    }

    /// Watches the child that has this slot from now on.
    pub fn watch(&self, slot: usize, pipe: OwnedFd) {
        self.pipes[slot].store(pipe.into_raw_fd(), Ordering::Release);
        // The counter cannot overflow.
        let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
    }

    /// The pipe of a slot, if there is one.
    fn pipe(&self, slot: usize) -> Option<BorrowedFd<'_>> {
        let pipe = self.pipes[slot].load(Ordering::Acquire);
        // SAFETY: the caller is the reaper's thread, and only this thread closes the pipe.
        (pipe != NONE).then(|| unsafe { BorrowedFd::borrow_raw(pipe) })
    }

    /// Starts the thread, which never ends.
    pub fn start(region: &'static Region) -> Result<(), Error> {
        let thread = std::thread::Builder::new().name("bedplate-children".into());
        bedplate_threads::spawn(thread, move || region.reaper.run(region)).map(drop).map_err(unavailable)
    }

    fn run(&self, region: &'static Region) {
        loop {
            let mut waits: [PollFd<'_>; 1 + MOST] =
                std::array::from_fn(|_| PollFd::new(&self.wake_up, PollFlags::IN));
            let mut slots = [0; 1 + MOST];
            let mut count = 1;
            for slot in 0..MOST {
                if let Some(pipe) = self.pipe(slot) {
                    // A closed other end is reported even without requested events.
                    waits[count] = PollFd::from_borrowed_fd(pipe, PollFlags::empty());
                    slots[count] = slot;
                    count += 1;
                }
            }
            region.publish();
            if poll(&mut waits[..count], Some(&PUBLISH)).is_err() {
                continue; // Interrupted by a signal.
            }
            if !waits[0].revents().is_empty() {
                let _ = rustix::io::read(self.wake_up.as_fd(), &mut [0; 8]);
            }
            let gone: [bool; 1 + MOST] = std::array::from_fn(|n| n > 0 && !waits[n].revents().is_empty());
            for number in (1..count).filter(|number| gone[*number]) {
                self.end(region, slots[number]);
            }
        }
    }

    fn end(&self, region: &Region, slot: usize) {
        let pipe = self.pipes[slot].swap(NONE, Ordering::AcqRel);
        // SAFETY: the descriptor was given to `watch`, and no other code knows it.
        drop(unsafe { OwnedFd::from_raw_fd(pipe) });
        // A child that closed its end but still lives must notice this.
        region.control.set_over(slot, region.space.epochs.of(slot));
        task::end(region.space, slot);
    }
}
