//! Snapshots in forked children: taken just before `fork`, and held still until just after it, so that the memory and
//! all that is outside of it are of the same moment.

use std::os::fd::OwnedFd;
use std::time::Instant;

use bedplate_ring0::word::Native;
use rustix::pipe::{PipeFlags, pipe_with};

use super::protocol::{MOST, Writing};
use super::region::unavailable;
use super::spawn::{take, take_tables};
use super::{child, heap::Region};
use crate::Error;

/// A snapshot without a child. Nobody writes to protected pages, which all are: whoever holds this must not write to
/// the region, nor let signals be handled on top of it.
pub struct Frozen {
    region: &'static Region,
    place: usize,
    epoch: u64,
    latch: Writing<'static, Native>,
    read: OwnedFd,
    write: OwnedFd,
    begin: Instant,
}

impl Region {
    /// Takes a snapshot for a `fork` that is the next thing this thread does. Signals are blocked.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::System`]: nothing has happened.
    pub fn freeze(&'static self) -> Result<Frozen, Error> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(Error::system("pipe"))?;
        let begin = Instant::now();
        let place = self.space.epochs.take_place().ok_or(Error::TooManySnapshots { limit: MOST })?;
        let taken = take_tables(self.space).and_then(|tables| {
            let taken = self.space.process.run(|cpu| take(self.space, cpu, place, tables, |latch| latch));
            taken.map_err(unavailable).flatten()
        });
        match taken {
            Ok((epoch, _, latch)) => Ok(Frozen { region: self, place, epoch, latch, read, write, begin }),
            Err(error) => {
                self.space.epochs.give_place(place);
                Err(error)
            }
        }
    }
}

impl Frozen {
    /// In the parent: all go on. When there is no child after all, the snapshot ends by itself.
    pub fn thaw(self) {
        let Self { region, place, latch, read, write, begin, .. } = self;
        drop(latch);
        let pause = begin.elapsed().as_nanos() as u64;
        region.pauses.record(pause);
        // Only the child has the other end now: when it ends, so does the pipe.
        drop(write);
        region.reaper.watch(place, read);
    }

    /// In the child, before anything touches the region: it enters ring 0, where the region is as it was.
    ///
    /// # Safety
    /// This is the child of a `fork` that followed [`Region::freeze`] immediately, and has one thread.
    pub unsafe fn enter_in_child(self) -> Result<(), Error> {
        let Self { region, place, epoch, latch, read, write, .. } = self;
        // The latch is a copy of the parent's: nobody uses it here.
        std::mem::forget(latch);
        drop(read);
        // Open until this process ends.
        std::mem::forget(write);
        child::enter(region, place, epoch)
    }
}
