//! Waiting by a descriptor. It is readable when the worker would get anything else than "not yet".
//!
//! The worker announces on the board that it watches. The service withdraws the announcement when it publishes something, and
//! sends one packet for it. So the worker knows the number of packets that have been or are about to be sent, without a look: one
//! for each withdrawn announcement, and one from the beginning. It takes them when there is nothing to read, but never the packet
//! for its latest announcement.
//!
//! Invariant: a packet is ready or about to be sent, or the worker has announced that it watches when nothing was ready. In the
//! latter case, a packet follows whatever comes since.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;

use std::sync::atomic::Ordering::Relaxed;

use super::Channel;
use crate::{Error, Result};

/// A worker's descriptor.
pub(super) struct Watch {
    socket: OwnedFd,
    /// Number of packets that have been or are about to be sent, without the one for the worker's latest announcement.
    owed: usize,
    /// Whether the worker has announced that it watches.
    is_armed: bool,
}

impl Watch {
    /// Takes the packets that are owed and have arrived. Returns whether the other side is gone.
    fn drain(&mut self) -> Result<bool> {
        while self.owed > 0 {
            match recv(&self.socket, &mut [0u8; 8][..], RecvFlags::DONTWAIT) {
                // No packet is empty.
                Ok((_, 0)) => return Ok(true),
                Ok(_) => self.owed -= 1,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => return Ok(true),
                Err(error) => return Err(Error::system("reading a channel's descriptor")(error)),
            }
        }
        Ok(false)
    }
}

impl Channel {
    /// A descriptor that `poll`, `epoll` and similar calls report as readable when [`get_page`](Self::get_page) would return
    /// anything else than [`Got::NotYet`](super::Got::NotYet). It may be readable once in vain, until `get_page` has returned
    /// that. It belongs to the channel: no other code may read from it or close it. Pages are returned as always, independently
    /// of the descriptor.
    ///
    /// From now on, the service makes a system call for a worker that has found nothing, and the worker makes one to take note of
    /// it. Nothing else changes.
    ///
    /// # Errors
    /// The descriptor cannot be created, or the service has ended.
    pub fn descriptor(&mut self) -> Result<BorrowedFd<'_>> {
        self.lender.check_process()?;
        if self.watch.is_none() {
            let socket = self.lender.link.descriptor(&self.lender.board)?;
            self.watch = Some(Watch { socket, owed: 1, is_armed: false });
        }
        Ok(self.watch.as_ref().expect("it was just made").socket.as_fd())
    }

    /// Arms the descriptor after nothing was found, so that it becomes readable when there is something. Returns whether there is
    /// something now.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.lender.board.service().sleeper.watch() {
            let watch = self.watch.as_mut().expect("the caller has it");
            // The service has withdrawn the earlier announcement, and sends a packet for that.
            watch.owed += usize::from(watch.is_armed);
            watch.is_armed = true;
            if self.has_news() {
                return Ok(true);
            }
            self.ring_for_want();
        }
        let watch = self.watch.as_mut().expect("as above");
        if watch.owed > 0 {
            self.lender.board.worker().calls.fetch_add(1, Relaxed);
            // Pages that the service published before its end are valid. The next call reports the end.
            watch.drain()?;
        }
        Ok(false)
    }

    /// Sleeps until the descriptor is readable, or for a time.
    pub(super) fn sleep_watching(&mut self, most: Duration) -> Result<()> {
        if self.arm()? {
            return Ok(());
        }
        self.lender.board.worker().calls.fetch_add(1, Relaxed);
        let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        let watch = self.watch.as_ref().expect("the caller has it");
        // The thread was woken or interrupted, or has slept long enough. The caller checks again in any case.
        let _ = poll(&mut [PollFd::new(&watch.socket, PollFlags::IN)], Some(&time));
        Ok(())
    }
}
