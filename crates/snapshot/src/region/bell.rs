//! Waking threads that wait for descriptors.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;

use super::above_standard::above_standard;

/// Wakes a thread that waits for descriptors.
pub struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> Result<Self, Errno> {
        above_standard(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?).map(Self)
    }

    pub fn ring(&self) {
        // It only fails when it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it quiet again.
    pub fn answer(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub fn poll(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }
}
