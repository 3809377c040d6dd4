//! Waking threads that wait for descriptors.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;

use super::above_standard::above_standard;

/// Wakes a thread that waits for descriptors.
pub struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> Result<Self, Errno> {
        above_standard(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?).map(Self)
    }

    /// Wakes the thread.
    pub fn notify(&self) {
        // The write fails only after 2^64 notifications.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears all notifications. Only the thread that was woken calls this.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// The argument for `poll`: readable if there is a notification.
    pub fn poll(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }
}
