//! Addresses in the region, for owners that use parts of it as they need them.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::region::Region;

impl Region {
    /// Claims so many pages at the lowest free place that is aligned to `align` pages.
    pub fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
        let _space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        loop {
            // All after what was ever used is free.
            let free = match self.claimed.run(at..self.used(), false) {
                Some(free) if free.end < self.used() => free,
                Some(free) => free.start..self.pages,
                None => self.used().max(at)..self.pages,
            };
            let start = free.start.next_multiple_of(align);
            let end = start.checked_add(count)?;
            if end <= free.end {
                self.claim(start..end);
                return Some(start..end);
            }
            if free.end == self.pages {
                return None;
            }
            at = free.end;
        }
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
