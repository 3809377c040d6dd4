//! Snapshots in forked children.
//!
//! The region is made private before `fork`. The child inherits it as the kernel has it inherit any private memory, so
//! what is in the region and outside of it are of the same moment, that of the fork.

use std::sync::MutexGuard;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use super::children::Anchor;
use super::region::{Region, State};
use crate::region::{exclude_from_dumps, now};
use crate::{Error, PAGE};

/// A region that a child is about to inherit. Whoever holds this must not claim or give back anything of it.
pub struct Frozen<'a> {
    region: &'a Region,
    state: MutexGuard<'a, State>,
    anchor: Option<Anchor>,
    begin: u64,
}

impl Region {
    /// Maps pages from one on, of which the child has inherited none, or which it has inherited without access.
    ///
    /// # Safety
    /// The child has one thread.
    unsafe fn map_rest(&self, from: usize) -> Result<(), Error> {
        if self.is_pinned() {
            return self.make_rest_accessible().map_err(Error::system("mapping the region in the child"));
        }
        if from == self.pages {
            return Ok(());
        }
        let (at, len) = (self.address(from), (self.pages - from) * PAGE);
        // SAFETY: nothing is mapped there: children do not inherit what is shared.
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
    /// As [`engine::Frozen::map_in_child`](crate::engine::Frozen::map_in_child).
    pub(crate) unsafe fn map_in_child(self) -> Result<(), Error> {
        let Self { region, state, anchor, .. } = self;
        let to = state.private.end;
        // The lock's state is a copy of the parent's: nobody uses it here.
        std::mem::forget(state);
        // It stays as long as this process and those that it forks.
        std::mem::forget(anchor);
        // It mostly reads, by entries that are as large as can be.
        // SAFETY: the region's memory, whose content does not change.
        let _ = unsafe {
            madvise(std::ptr::without_provenance_mut(region.base), to * PAGE, Advice::LinuxHugepage)
        };
        // Nothing is in use there, but nobody else's must be there.
        // SAFETY: the child's only thread.
        unsafe { region.map_rest(to) }
    }
}
