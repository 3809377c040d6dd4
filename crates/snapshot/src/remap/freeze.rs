//! Snapshots in forked children.
//!
//! The region is made private before `fork`. The child inherits it as any private memory. The contents of the
//! region and all other memory are therefore of the same moment, the moment of the fork.

use std::sync::MutexGuard;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use super::children::Anchor;
use super::region::{Region, State};
use crate::region::{exclude_from_dumps, now};
use crate::{Error, PAGE};

/// A region that a child is about to inherit. The holder must not claim or release any part of it.
pub struct Frozen<'a> {
    region: &'a Region,
    state: MutexGuard<'a, State>,
    anchor: Option<Anchor>,
    begin: u64,
}

impl Region {
    /// Maps the pages from `from` on. The child has not inherited them, or has inherited them without access.
    ///
    /// # Safety
    /// The child must have one thread.
    unsafe fn map_rest(&self, from: usize) -> Result<(), Error> {
        if self.is_pinned() {
            return self.make_rest_accessible().map_err(Error::system("mapping the region in the child"));
        }
        if from == self.pages {
            return Ok(());
        }
        let (at, len) = (self.address(from), (self.pages - from) * PAGE);
        // SAFETY: nothing is mapped there, because children do not inherit shared mappings.
        unsafe {
            mmap(
                std::ptr::without_provenance_mut(at),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
                &self.file,
                (from * PAGE) as u64,
            )
        }
        .map_err(Error::system("mapping the region in the child"))?;
        exclude_from_dumps(at, len);
        Ok(())
    }
}

impl<'a> Frozen<'a> {
    pub(super) fn new(region: &'a Region) -> Result<Self, Error> {
        let mut state = region.lock();
        let begin = now();
        region.begin(&mut state)?;
        let anchor = state.children.fork();
        Ok(Self { region, state, anchor, begin })
    }
}

impl Frozen<'_> {
    pub(crate) fn thaw(mut self) -> u32 {
        let epoch = self.state.epoch;
        if self.state.task.is_none() && !self.region.is_pinned() {
            self.state.detached = self.state.private.clone();
        }
        drop(self.anchor);
        self.region.counters.pauses.record(now() - self.begin);
        self.region.publish(&self.state);
        drop(self.state);
        self.region.wake_up.notify();
        epoch
    }

    /// # Safety
    /// The same as for [`engine::Frozen::map_in_child`](crate::engine::Frozen::map_in_child).
    pub(crate) unsafe fn map_in_child(self) -> Result<(), Error> {
        let Self { region, state, anchor, .. } = self;
        let to = state.private.end;
        // The lock is a copy of the parent's lock, and is not used here.
        std::mem::forget(state);
        // The anchor must exist as long as this process and its descendants.
        std::mem::forget(anchor);
        // The child mostly reads, so huge page-table entries are best.
        // SAFETY: the region's memory, whose content does not change.
        let _ = unsafe {
            madvise(std::ptr::without_provenance_mut(region.base), to * PAGE, Advice::LinuxHugepage)
        };
        // No page is in use there, but no other mapping may take these addresses.
        // SAFETY: this is the child's only thread.
        unsafe { region.map_rest(to) }
    }
}
