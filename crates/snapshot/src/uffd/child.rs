//! Snapshots in forked children.
//!
//! The region is frozen before `fork`, and thawed in the parent after it. For a multi-threaded owner, the memory in
//! the region and outside of it are therefore of the same moment. The child maps the region's file privately at the
//! region's address. The parent waits for that only when it first writes to a page.

use std::os::fd::OwnedFd;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use super::page_map;
use super::region::Region;
use super::snapshots::{Slot, Snapshots};
use super::target::{ChildTarget, Target};
use crate::engine::number;
use crate::region::{exclude_from_dumps, now};
use crate::{Error, PAGE};

/// A region all of whose pages are armed and whose faults wait. The holder must not write to it.
pub struct Frozen<'a> {
    region: &'a Region,
    snapshots: RwLockWriteGuard<'a, Snapshots>,
    slot: usize,
    epoch: u32,
    owners_end: OwnedFd,
    childs_end: OwnedFd,
    begin: u64,
}

impl Region {
    /// Maps the region at the parent's address.
    ///
    /// # Safety
    /// The caller must be a child of the owner with one thread, and must not have mapped the region yet.
    pub(super) unsafe fn map_privately(&self) -> Result<(), Error> {
        // SAFETY: nothing is mapped there, because children do not inherit the region.
        unsafe {
            mmap(
                std::ptr::without_provenance_mut(self.base),
                self.pages * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
                &self.memory,
                0,
            )
        }
        .map_err(Error::system("mapping the region in the child"))?;
        let used = self.used.load(Ordering::Acquire);
        exclude_from_dumps(self.address(used), (self.pages - used) * PAGE);
        Ok(())
    }

    /// Makes the pages in use this process's own.
    pub(super) fn make_own(&self) {
        let mut at = 0;
        while let Some(run) = self.claimed.run(at..self.pages, true) {
            at = run.end;
            let start = std::ptr::without_provenance_mut(self.address(run.start));
            // SAFETY: faults pages in as if they were written, which changes no content. Without memory, the
            // kernel's out-of-memory killer acts as it would for writes.
            while unsafe { madvise(start, run.len() * PAGE, Advice::LinuxPopulateWrite) } == Err(Errno::INTR)
            {
            }
        }
    }
}

impl<'a> Frozen<'a> {
    pub(super) fn new(region: &'a Region) -> Result<Self, Error> {
        let (owners_end, childs_end) = page_map::channel().map_err(Error::system("socketpair"))?;
        let begin = now();
        let mut snapshots = region.close();
        let (slot, epoch) = region.begin(&mut snapshots)?;
        Ok(Self { region, snapshots, slot, epoch, owners_end, childs_end, begin })
    }
}

impl Frozen<'_> {
    /// Ends the freeze. Without a child, no process has the other end of the channel, and the snapshot ends.
    pub(crate) fn thaw(mut self) -> u64 {
        // Only the child has the other end now. It is closed when the child ends.
        drop(self.childs_end);
        let target = Target::Child(ChildTarget::new(self.owners_end));
        self.snapshots.slots[self.slot] = Some(Slot { epoch: self.epoch, target });
        let number = number(self.snapshots.era, self.epoch);
        drop(self.snapshots);
        self.region.counters.pauses.record(now() - self.begin);
        self.region.wake_up.notify();
        number
    }

    /// # Safety
    /// The same as for [`engine::Frozen::map_in_child`](crate::engine::Frozen::map_in_child).
    pub(crate) unsafe fn map_in_child(self) -> Result<(), Error> {
        let Self { region, snapshots, owners_end, childs_end, .. } = self;
        // The lock is a copy of the parent's lock, and is not used here.
        std::mem::forget(snapshots);
        drop(owners_end);
        // SAFETY: this is the child's only thread.
        unsafe { region.map_privately() }?;
        page_map::introduce(&childs_end);
        // The descriptor stays open until this process ends.
        std::mem::forget(childs_end);
        Ok(())
    }
}
