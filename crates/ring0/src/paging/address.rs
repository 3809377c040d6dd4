//! Virtual addresses, page sizes, and ranges of addresses.
//!
//! This module handles only the lower half of the address space (below 2^47), because a Linux process has no other
//! addresses.

use super::PagingError;

/// The first address behind the process's addresses: 2^47.
pub const ADDRESS_LIMIT: u64 = 1 << 47;

/// The sizes of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB.
    Size4K,
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

impl PageSize {
    /// Number of bytes of a page.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Number of frames of 4 KiB of a page.
    #[inline]
    pub const fn frames(self) -> u64 {
        self.bytes() >> 12
    }

    /// Number of low bits of an address that are the offset in the page.
    #[inline]
    pub const fn shift(self) -> u32 {
        12 + 9 * (self.level() as u32 - 1)
    }

    /// Whether leaves of this size need [`PteFlags::HUGE`](super::PteFlags::HUGE).
    #[inline]
    pub const fn is_huge(self) -> bool {
        !matches!(self, PageSize::Size4K)
    }

    /// The level of the tables whose leaves have this size: 1 for 4 KiB.
    #[inline]
    pub(super) const fn level(self) -> u8 {
        match self {
            PageSize::Size4K => 1,
            PageSize::Size2M => 2,
            PageSize::Size1G => 3,
        }
    }

    /// The size of leaves in tables of this level, or `None` if such leaves cannot exist.
    #[inline]
    pub(super) const fn of_level(level: u8) -> Option<PageSize> {
        match level {
            1 => Some(PageSize::Size4K),
            2 => Some(PageSize::Size2M),
            3 => Some(PageSize::Size1G),
            _ => None,
        }
    }
}

/// Number of bytes that one entry of a table of this level spans.
#[inline]
pub(super) const fn span(level: u8) -> u64 {
    1 << (12 + 9 * (level as u32 - 1))
}

/// The index of an address's entry in a table of this level.
#[inline]
pub(super) const fn index(address: u64, level: u8) -> usize {
    ((address >> (12 + 9 * (level as u32 - 1))) & 511) as usize
}

/// A range of addresses that is not empty. `start` is included and `end` is not; both are multiples of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VirtRange {
    start: u64,
    end: u64,
}

impl VirtRange {
    /// The range `start..end`.
    pub const fn new(start: u64, end: u64) -> Result<VirtRange, PagingError> {
        if end > ADDRESS_LIMIT {
            return Err(PagingError::OutOfRange { address: end });
        }
        if start >= end {
            return Err(PagingError::EmptyRange { start, end });
        }
        if !start.is_multiple_of(4096) {
            return Err(PagingError::Unaligned { value: start, size: PageSize::Size4K });
        }
        if !end.is_multiple_of(4096) {
            return Err(PagingError::Unaligned { value: end, size: PageSize::Size4K });
        }
        Ok(VirtRange { start, end })
    }

    /// The range of `bytes` bytes from `start` on.
    pub const fn at(start: u64, bytes: u64) -> Result<VirtRange, PagingError> {
        match start.checked_add(bytes) {
            Some(end) => VirtRange::new(start, end),
            None => Err(PagingError::OutOfRange { address: start }),
        }
    }

    /// The range that one entry of the topmost table spans: 512 GiB.
    pub const fn top_level_slot(slot: usize) -> Result<VirtRange, PagingError> {
        VirtRange::at((slot as u64).saturating_mul(span(4)), span(4))
    }

    /// The first address.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The first address behind the range.
    #[inline]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes in the range.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.end - self.start
    }

    /// The addresses of the range's pages of 4 KiB.
    pub fn pages(self) -> impl Iterator<Item = u64> {
        (self.start >> 12..self.end >> 12).map(|page| page << 12)
    }

    /// Whether the address is in the range.
    #[inline]
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether both ends are multiples of this size.
    #[inline]
    pub const fn is_aligned(self, size: PageSize) -> bool {
        (self.start | self.end).is_multiple_of(size.bytes())
    }

    /// The intersection with `bytes` bytes from `start` on, or `None` if it is empty.
    #[inline]
    pub(super) fn within(self, start: u64, bytes: u64) -> Option<VirtRange> {
        let (start, end) = (self.start.max(start), self.end.min(start + bytes));
        (start < end).then_some(VirtRange { start, end })
    }

    /// Cuts the range into at most `parts` ranges of nearly equal size whose inner ends are multiples of 2 MiB.
    /// Threads can share the work of [`clone_range`](super::PageTables::clone_range) this way.
    pub fn split(self, parts: usize) -> impl Iterator<Item = VirtRange> {
        const UNIT: u64 = PageSize::Size2M.bytes();
        let parts = parts.max(1) as u64;
        let units = (self.end.div_ceil(UNIT)) - self.start / UNIT;
        let cut = move |part: u64| {
            let whole = (self.start / UNIT + (units * part).div_ceil(parts)) * UNIT;
            whole.clamp(self.start, self.end)
        };
        (0..parts).filter_map(move |part| VirtRange::new(cut(part), cut(part + 1)).ok())
    }
}

/// Refuses an address outside of the process's half, or one that is not a multiple of the page's size.
pub(super) const fn check(address: u64, size: PageSize) -> Result<(), PagingError> {
    if address >= ADDRESS_LIMIT {
        return Err(PagingError::OutOfRange { address });
    }
    if !address.is_multiple_of(size.bytes()) {
        return Err(PagingError::Unaligned { value: address, size });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bad_ranges_are_refused() {
        assert!(matches!(VirtRange::new(4096, 4096), Err(PagingError::EmptyRange { .. })));
        assert!(matches!(VirtRange::new(8192, 4096), Err(PagingError::EmptyRange { .. })));
        assert!(matches!(VirtRange::new(1, 4096), Err(PagingError::Unaligned { value: 1, .. })));
        assert!(matches!(VirtRange::at(0, 17), Err(PagingError::Unaligned { value: 17, .. })));
        assert!(matches!(VirtRange::at(4096, u64::MAX - 4095), Err(PagingError::OutOfRange { .. })));
        assert!(matches!(VirtRange::top_level_slot(256), Err(PagingError::OutOfRange { .. })));
        assert_eq!(VirtRange::top_level_slot(255).unwrap().end(), ADDRESS_LIMIT);
    }

    proptest! {
        #[test]
        fn parts_cover_the_range_without_overlap(start in 0u64..5000, pages in 1u64..5000, parts in 1usize..9) {
            let range = VirtRange::at(start * 4096, pages * 4096).unwrap();
            let cut: Vec<_> = range.split(parts).collect();
            prop_assert!(cut.len() <= parts);
            prop_assert_eq!(cut.first().unwrap().start(), range.start());
            prop_assert_eq!(cut.last().unwrap().end(), range.end());
            for pair in cut.windows(2) {
                prop_assert_eq!(pair[0].end(), pair[1].start());
                prop_assert!(pair[0].end().is_multiple_of(PageSize::Size2M.bytes()));
            }
        }
    }
}
