//! Wakes the event loop from other threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use bedplate_kerneldb::{Error, Result};

/// A doorbell, and the message that the loop is to stop. `Send + Sync`.
pub(super) struct Wake {
    fd: OwnedFd,
    stop: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("create an event descriptor", e.into()))?;
        Ok(Wake { fd, stop: AtomicBool::new(false) })
    }

    /// Readable after a call of [`Wake::stop`] or [`Wake::ring`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Asks the loop to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring();
    }

    /// Lets the loop look for requests.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}
