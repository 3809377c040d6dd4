//! Tracking of changes: which pages were exposed between two snapshots.
//!
//! Every page is armed at every snapshot. The owner can therefore change a page between two snapshots only after
//! the page was exposed between them. Each page has the epoch of its newest exposure. Until the page is exposed
//! again, this is also the newest exposure before any later snapshot. When it is exposed again, the older epoch is
//! stored here for each active snapshot.
//!
//! The entries of a slot are read only for pages that were exposed since its snapshot began. These entries were
//! written by that exposure. The slot's next snapshot therefore needs no new table.

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

    /// Stores the previous exposure of a page that is about to be exposed for the first time since a slot's
    /// snapshot. The caller must store the page's new epoch afterwards.
    pub fn exposed(&self, slot: usize, page: usize, before: u32) {
        self.before[slot * self.pages + page].store(before, Ordering::Relaxed);
    }

    /// The newest exposure of a page before the snapshot with this epoch and slot. `newest` is the page's newest
    /// exposure of all.
    pub fn newest_before(&self, slot: usize, epoch: u32, page: usize, newest: &AtomicU32) -> u32 {
        // The older epoch was stored before the newest one, so it is visible together with it.
        let newest = newest.load(Ordering::Acquire);
        if newest < epoch { newest } else { self.before[slot * self.pages + page].load(Ordering::Relaxed) }
    }
}
