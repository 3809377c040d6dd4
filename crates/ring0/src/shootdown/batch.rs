//! The pages to flush, collected as ranges while page tables are changed.

use crate::paging::PageSize;

/// The limit of ranges in a batch. A batch with more ranges becomes a full flush.
const RANGES: usize = 8;
/// The limit of pages that are flushed one by one. For more pages, a full flush is cheaper. Linux uses 33 for the
/// same reason.
const PAGES: u32 = 33;

/// Consecutive pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// The address of the first page.
    pub start: u64,
    /// Number of pages.
    pub count: u32,
    /// Size of each page. One flush removes the translation of a whole huge page.
    pub size: PageSize,
}

impl Pages {
    /// The addresses of the pages.
    pub fn addresses(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.count)).map(move |number| self.start + number * self.size.bytes())
    }

    const fn end(self) -> u64 {
        self.start + self.count as u64 * self.size.bytes()
    }
}

/// Pages to flush. A batch with too many pages or ranges is a full flush.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    ranges: [Pages; RANGES],
    used: usize,
    pages: u32,
    full: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Creates an empty batch.
    pub const fn new() -> Batch {
        let none = Pages { start: 0, count: 0, size: PageSize::Size4K };
        Batch { ranges: [none; RANGES], used: 0, pages: 0, full: false }
    }

    /// Creates a batch that flushes everything.
    pub const fn full() -> Batch {
        Batch { full: true, ..Batch::new() }
    }

    /// Creates a batch of one page.
    pub const fn page(address: u64, size: PageSize) -> Batch {
        let mut batch = Batch::new();
        batch.add(address, size);
        batch
    }

    /// Adds a page that was unmapped, or that lost rights.
    pub const fn add(&mut self, address: u64, size: PageSize) {
        let start = address & !(size.bytes() - 1);
        self.pages += 1;
        if self.full || self.pages > PAGES {
            self.full = true;
            return;
        }
        if self.used > 0 {
            let last = &mut self.ranges[self.used - 1];
            if last.end() == start && last.size as u8 == size as u8 {
                last.count += 1;
                return;
            }
        }
        if self.used == RANGES {
            self.full = true;
            return;
        }
        self.ranges[self.used] = Pages { start, count: 1, size };
        self.used += 1;
    }

    /// Whether the batch flushes nothing.
    pub const fn is_empty(&self) -> bool {
        self.used == 0 && !self.full
    }

    /// Whether the batch flushes everything.
    pub const fn is_full(&self) -> bool {
        self.full
    }

    /// The ranges to flush one by one; empty if the batch flushes everything.
    pub fn ranges(&self) -> &[Pages] {
        if self.full { &[] } else { self.ranges.get(..self.used).unwrap_or_default() }
    }
}
