//! Waiting by a descriptor: it is readable when the worker would get something else than "not yet".
//!
//! The worker says on the board that it watches; the service takes that back when it publishes something, and sends one packet
//! for it. So the worker knows how many packets there are, or will be in a moment, without looking: one for each time that
//! what it said was taken back, and one from the beginning. It takes them when there is nothing to read, and never one that is
//! sent for what it has said last.
//!
//! Invariant: a packet is there or about to be, or the worker has said that it watches at a time when there was nothing, and
//! whatever comes since is followed by a packet.

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
    /// Packets that are there or will be in a moment, but for one that is sent for what the worker said last.
    owed: usize,
    /// The worker has said that it watches.
    is_armed: bool,
}

impl Watch {
    /// Takes the packets that are owed, as far as they are there. Whether the other side is gone.
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
    /// A descriptor that `poll`, `epoll` and what is made of them find readable when [`get_page`](Self::get_page) would say something else
    /// than [`Got::NotYet`](super::Got::NotYet). It may be readable once in vain, until `get_page` has said that. It stays the channel's:
    /// nobody else reads from it or closes it. Pages are returned as always: it says nothing of that.
    ///
    /// From now on the service makes a system call for a worker that has found nothing, and the worker one that takes notice of
    /// it. Nothing else changes.
    ///
    /// # Errors
    /// There is none to be had; the service has ended.
    pub fn descriptor(&mut self) -> Result<BorrowedFd<'_>> {
        self.lender.check_process()?;
        if self.watch.is_none() {
            let socket = self.lender.link.descriptor(&self.lender.board)?;
            self.watch = Some(Watch { socket, owed: 1, is_armed: false });
        }
        Ok(self.watch.as_ref().expect("it was just made").socket.as_fd())
    }

    /// There was nothing: the descriptor shall be readable when there is something. Whether there is something now.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.lender.board.service().sleeper.watch() {
            let watch = self.watch.as_mut().expect("the caller has it");
            // What was said before was taken back, for which a packet is sent.
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
            // What the service published before it was gone is good; that it is gone is said by whoever asks next.
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
        // Woken, interrupted, or long enough: it is looked at again either way.
        let _ = poll(&mut [PollFd::new(&watch.socket, PollFlags::IN)], Some(&time));
        Ok(())
    }
}
