//! Snapshots in forked children. A snapshot is taken just before `fork`, and writes are held up until just after
//! it. The memory and all other memory of the process are therefore of the same moment.

use std::os::fd::OwnedFd;
use std::time::Instant;

use bedplate_ring0::word::Native;
use rustix::pipe::{PipeFlags, pipe_with};

use super::frames::unavailable;
use super::protocol::{MOST, Writing};
use super::spawn::{take, take_tables};
use super::{arena::Region, child};
use crate::Error;

/// A snapshot whose child does not exist yet. All pages are protected, and no thread can write to them. The holder
/// must not write to the region, and must not let signals be handled.
pub struct Frozen {
    region: &'static Region,
    slot: usize,
    epoch: u64,
    latch: Writing<'static, Native>,
    read: OwnedFd,
    write: OwnedFd,
    begin: Instant,
}

impl Frozen {
    /// Takes a snapshot. Signals must be blocked.
    pub(super) fn new(region: &'static Region) -> Result<Self, Error> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(Error::system("pipe"))?;
        let begin = Instant::now();
        let space = region.space;
        let slot = space.epochs.take_slot().ok_or(Error::TooManySnapshots { limit: MOST })?;
        let taken = take_tables(space).and_then(|tables| {
            let taken = space.process.run(|cpu| take(space, cpu, slot, tables, |latch| latch));
            taken.map_err(unavailable).flatten()
        });
        match taken {
            Ok((epoch, _, latch)) => Ok(Self { region, slot, epoch, latch, read, write, begin }),
            Err(error) => {
                space.epochs.give_slot(slot);
                Err(error)
            }
        }
    }

    pub(crate) fn thaw(self) -> u64 {
        let Self { region, slot, epoch, latch, read, write, begin } = self;
        drop(latch);
        let pause = begin.elapsed().as_nanos() as u64;
        region.pauses.record(pause);
        // Only the child has the other end now, so the pipe is closed when the child ends.
        drop(write);
        region.reaper.watch(slot, read);
        epoch
    }

    /// Enters ring 0, where the region has the content of the snapshot.
    ///
    /// # Safety
    /// The same as for [`engine::Frozen::map_in_child`](crate::engine::Frozen::map_in_child).
    pub(crate) unsafe fn map_in_child(self) -> Result<(), Error> {
        let Self { region, slot, epoch, latch, read, write, .. } = self;
        // The latch is a copy of the parent's latch, and is not used here.
        std::mem::forget(latch);
        drop(read);
        // The pipe stays open until this process ends.
        std::mem::forget(write);
        child::enter(region, slot, epoch)
    }
}
