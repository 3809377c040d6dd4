//! Which pages were exposed between two snapshots, for regions that keep track of it.
//!
//! A page is armed at every snapshot, so the owner changes it between two snapshots only after it was exposed between
//! them. Each page has the epoch of its newest exposure. That is the newest one before a snapshot, too, until the page is
//! exposed again: then the older epoch is stored here, for each snapshot that there is.
//!
//! Entries of a slot are read only for pages that were exposed since its snapshot began, for which they were written. So a
//! slot's next snapshot needs no new table.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::tables::{AtomicU32, MmapArray};

/// For each slot and page, the epoch of the page's newest exposure before the slot's snapshot.
pub(super) struct Changes {
    before: MmapArray<AtomicU32>,
    pages: usize,
}

impl Changes {
    pub fn new(slots: usize, pages: usize) -> Result<Self, Errno> {
        Ok(Self { before: MmapArray::new(slots * pages, false)?, pages })
    }

    /// A page is about to be exposed for the first time since a slot's snapshot. The caller then stores the page's new epoch.
    pub fn exposed(&self, slot: usize, page: usize, before: u32) {
        self.before[slot * self.pages + page].store(before, Ordering::Relaxed);
    }

    /// The newest exposure of a page before the snapshot `epoch` in a slot, by the newest one of all.
    pub fn newest_before(&self, slot: usize, epoch: u32, page: usize, newest: &AtomicU32) -> u32 {
        // What was stored before the newest epoch is seen with it.
        let newest = newest.load(Ordering::Acquire);
        if newest < epoch { newest } else { self.before[slot * self.pages + page].load(Ordering::Relaxed) }
    }
}
