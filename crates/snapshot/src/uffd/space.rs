//! Addresses in the region, for owners that use parts of it as they need them.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::region::Region;

impl Region {
    /// Claims so many pages at the lowest free place that is aligned to `align` pages.
    pub fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
        let _space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = self.claimed.gap(self.used(), self.pages, count, align)?;
        self.claim(pages.clone());
        Some(pages)
    }

    /// Claims these pages if they are all free.
    pub fn claim_exactly(&self, pages: Range<usize>) -> bool {
        let _space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pages.end <= self.pages && self.claimed.first(pages.clone(), true).is_none();
        if free {
            self.claim(pages);
        }
        free
    }

    /// Whether threads serve its faults, so that snapshots can be taken.
    pub fn is_served(&self) -> bool {
        self.served.load(Ordering::Acquire)
    }
}
