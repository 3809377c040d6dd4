//! The size of a pool's pages, which is chosen when the pool is created.
//!
//! A size is a power of two, so page numbers become addresses and offsets by a shift. Storage is addressed in blocks of
//! [`PAGE`] bytes whatever the size of the pages is: the superblock is in blocks of fixed positions, so a pool can be
//! opened before its page size is known. A page is 1, 2, 4, 8 or 16 blocks.
//!
//! Offsets within a page need 16 bits. The payload of a page of 64 KiB ends at offset 65512, because the header is not part of
//! it. So no offset needs a 17th bit, not even the end of the largest payload.

use std::fmt;

use crate::error::{Error, Result};
use crate::page::{HEADER, PAGE};

/// The size of pages: a power of two from 4 KiB to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    shift: u32,
}

/// The logarithm of [`PAGE`].
const BLOCK_SHIFT: u32 = PAGE.trailing_zeros();

impl PageSize {
    /// The smallest size, 4 KiB. This is the default.
    pub const MIN: Self = Self { shift: BLOCK_SHIFT };
    /// The largest size, 64 KiB.
    pub const MAX: Self = Self { shift: BLOCK_SHIFT + 4 };
    /// All sizes, in ascending order.
    pub const ALL: [Self; 5] = [
        Self::MIN,
        Self { shift: BLOCK_SHIFT + 1 },
        Self { shift: BLOCK_SHIFT + 2 },
        Self { shift: BLOCK_SHIFT + 3 },
        Self::MAX,
    ];

    /// The size with this number of bytes. Fails unless it is a power of two from 4 KiB to 64 KiB.
    pub fn new(bytes: usize) -> Result<Self> {
        Self::of(bytes).ok_or(Error::Setting {
            what: "a page size",
            value: bytes as u64,
            must: "pages have a power of two of bytes, from 4096 to 65536",
        })
    }

    pub(crate) const fn of(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= Self::MIN.bytes() && bytes <= Self::MAX.bytes() {
            Some(Self { shift: bytes.trailing_zeros() })
        } else {
            None
        }
    }

    /// Bytes of a page.
    #[inline(always)]
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }

    /// Bytes of a page that belong to the user.
    #[inline(always)]
    pub const fn payload(self) -> usize {
        self.bytes() - HEADER
    }

    /// The logarithm of the number of bytes.
    #[inline(always)]
    pub(crate) const fn shift(self) -> u32 {
        self.shift
    }

    /// The first block of a page. It saturates, so the number of no page gives a block that no storage has.
    #[inline]
    pub(crate) const fn block(self, page: u64) -> u64 {
        page.saturating_mul(1 << (self.shift - BLOCK_SHIFT))
    }

    /// The offset of a page in storage, in bytes. It saturates like [`PageSize::block`].
    #[inline]
    pub(crate) const fn offset(self, page: u64) -> u64 {
        page.saturating_mul(1 << self.shift)
    }

    /// The page that contains a block.
    pub(crate) const fn page_of(self, block: u64) -> u64 {
        block >> (self.shift - BLOCK_SHIFT)
    }

    /// The first page from a block on.
    pub(crate) const fn page_from(self, block: u64) -> u64 {
        block.div_ceil(1 << (self.shift - BLOCK_SHIFT))
    }
}

impl Default for PageSize {
    fn default() -> Self {
        Self::MIN
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB", self.bytes() >> 10)
    }
}

impl fmt::Debug for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_from_4_to_64_kib_are_sizes() {
        let sizes: Vec<usize> = (0..=1 << 18).filter(|bytes| PageSize::new(*bytes).is_ok()).collect();
        assert_eq!(sizes, [4096, 8192, 16384, 32768, 65536]);
        assert_eq!(PageSize::ALL.map(PageSize::bytes)[..], sizes);
        assert!(PageSize::new(usize::MAX).is_err());
        let error = PageSize::new(12288).unwrap_err().to_string();
        assert_eq!(error, "a page size of 12288: pages have a power of two of bytes, from 4096 to 65536");
    }

    #[test]
    fn every_offset_in_a_payload_and_its_end_have_16_bits() {
        assert_eq!(PageSize::MAX.payload(), 65512);
        assert!(PageSize::ALL.iter().all(|size| u16::try_from(size.payload()).is_ok()));
    }

    #[test]
    fn pages_are_whole_blocks() {
        let size = PageSize::new(16384).unwrap();
        assert_eq!((size.block(3), size.page_of(12), size.page_of(15)), (12, 3, 3));
        assert_eq!((size.page_from(12), size.page_from(13)), (3, 4));
        assert_eq!(PageSize::MIN.block(7), 7);
        assert_eq!((size.offset(3), size.offset(u64::MAX)), (3 * 16384, u64::MAX));
    }
}
