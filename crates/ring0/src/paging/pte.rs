//! A page-table entry as a value: the meaning of its bits, and functions that derive one entry from another.
//!
//! A [`Pte`] is a value of 64 bits and owns no memory. Entries in memory, which other vCPUs and the processor
//! change, are [`Slot`](super::Slot)s.

use crate::frames::Frame;

use super::PageSize;

bitflags::bitflags! {
    /// The bits of an entry that are not part of the frame's address (AMD64 manual, volume 2, 5.4).
    ///
    /// Bits 12 to 51 are the address. Bits 59 to 62 are the protection key if protection keys are enabled, so
    /// software must not use them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PteFlags: u64 {
        /// The entry translates. If this bit is clear, software may use all other bits.
        const PRESENT = 1;
        /// Writes are allowed. A clear bit stops ring 0 only because CR0.WP is set.
        const WRITABLE = 1 << 1;
        /// Ring 3 may use the page.
        const USER = 1 << 2;
        /// Write-through caching.
        const WRITE_THROUGH = 1 << 3;
        /// No caching.
        const NO_CACHE = 1 << 4;
        /// Set by the processor when it uses the entry.
        const ACCESSED = 1 << 5;
        /// Set by the processor when it writes through a leaf.
        const DIRTY = 1 << 6;
        /// The entry is a leaf in a table of 2 MiB or 1 GiB entries. The bit is clear in a leaf of 4 KiB, where it
        /// would select a memory type. In huge leaves, bit 12 selects the memory type; it is clear too.
        const HUGE = 1 << 7;
        /// The translation survives a change of CR3.
        const GLOBAL = 1 << 8;
        /// Free for the owner of the mapping.
        const SOFTWARE_9 = 1 << 9;
        /// Free for the owner of the mapping.
        const SOFTWARE_10 = 1 << 10;
        /// Free for the owner of the mapping.
        const SOFTWARE_11 = 1 << 11;
        /// Free for the owner of the mapping.
        const SOFTWARE_52 = 1 << 52;
        /// Free for the owner of the mapping.
        const SOFTWARE_53 = 1 << 53;
        /// Free for the owner of the mapping.
        const SOFTWARE_54 = 1 << 54;
        /// Free for the owner of the mapping.
        const SOFTWARE_55 = 1 << 55;
        /// Free for the owner of the mapping.
        const SOFTWARE_56 = 1 << 56;
        /// Free for the owner of the mapping.
        const SOFTWARE_57 = 1 << 57;
        /// A thread is changing the page that the entry maps. While the bit is set, only that thread may change the
        /// entry; other changes are limited to `ACCESSED` and `DIRTY`, which the processor sets and harvesting
        /// clears. The processor ignores the bit, so a locked entry still translates. See
        /// [`Slot::try_lock`](super::RawSlot::try_lock).
        const LOCK = 1 << 58;
        /// Instruction fetches are not allowed.
        const NO_EXECUTE = 1 << 63;
    }
}

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// A page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Pte(u64);

impl Pte {
    /// The empty entry: all bits are zero.
    pub const EMPTY: Pte = Pte(0);

    /// Creates an entry for `frame`. No flag is added: without [`PteFlags::PRESENT`] the entry does not translate.
    #[inline]
    pub const fn new(frame: Frame, flags: PteFlags) -> Pte {
        Pte((frame.address() & ADDRESS) | flags.bits())
    }

    /// Creates an entry that points to the table of the next level. It has all permissions, because the leaves
    /// restrict them.
    #[inline]
    pub const fn table(frame: Frame) -> Pte {
        Pte::new(frame, PteFlags::PRESENT.union(PteFlags::WRITABLE).union(PteFlags::USER))
    }

    /// Creates a leaf for a page of this size.
    #[inline]
    pub const fn leaf(frame: Frame, size: PageSize, flags: PteFlags) -> Pte {
        let huge = if size.is_huge() { PteFlags::HUGE } else { PteFlags::empty() };
        Pte::new(frame, flags.union(PteFlags::PRESENT).union(huge))
    }

    /// The entry as the processor sees it.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Creates an entry from its 64 bits. Every value is valid.
    #[inline]
    pub const fn from_bits(bits: u64) -> Pte {
        Pte(bits)
    }

    /// The frame of the table or of the 4 KiB leaf, or the first frame of a huge leaf.
    #[inline]
    pub const fn frame(self) -> Frame {
        Frame::containing(self.0 & ADDRESS)
    }

    /// All bits but the address.
    #[inline]
    pub const fn flags(self) -> PteFlags {
        PteFlags::from_bits_truncate(self.0 & !ADDRESS)
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub const fn has(self, flags: PteFlags) -> bool {
        self.0 & flags.bits() == flags.bits()
    }

    /// Whether any of `flags` is set.
    #[inline]
    pub const fn has_any(self, flags: PteFlags) -> bool {
        self.0 & flags.bits() != 0
    }

    /// The entry with these bits set.
    #[inline]
    pub const fn with(self, flags: PteFlags) -> Pte {
        Pte(self.0 | flags.bits())
    }

    /// The entry with these bits clear.
    #[inline]
    pub const fn without(self, flags: PteFlags) -> Pte {
        Pte(self.0 & !flags.bits())
    }

    /// The entry with another frame.
    #[inline]
    pub const fn at(self, frame: Frame) -> Pte {
        Pte((self.0 & !ADDRESS) | (frame.address() & ADDRESS))
    }

    /// Whether the entry translates, or points to a table.
    #[inline]
    pub const fn is_present(self) -> bool {
        self.has(PteFlags::PRESENT)
    }

    /// Whether writing is allowed. Meaningful only for present entries.
    #[inline]
    pub const fn is_writable(self) -> bool {
        self.has(PteFlags::WRITABLE)
    }

    /// Whether [`PteFlags::LOCK`] is set.
    #[inline]
    pub const fn is_locked(self) -> bool {
        self.has(PteFlags::LOCK)
    }

    /// Whether the processor has written through the entry.
    #[inline]
    pub const fn is_dirty(self) -> bool {
        self.has(PteFlags::DIRTY)
    }

    /// Whether the processor has used the entry.
    #[inline]
    pub const fn is_accessed(self) -> bool {
        self.has(PteFlags::ACCESSED)
    }

    /// Whether the entry is a present leaf, in a table whose leaves have this size.
    #[inline]
    pub const fn is_leaf(self, size: PageSize) -> bool {
        self.is_present() && (!size.is_huge() || self.has(PteFlags::HUGE))
    }

    /// Entry `index` of the table that replaces this huge leaf. It maps its part of the memory with the same
    /// rights, in pages of the next smaller size.
    #[inline]
    pub const fn part(self, size: PageSize, index: usize) -> Pte {
        match size {
            PageSize::Size1G => self.at_part(index, PageSize::Size2M),
            PageSize::Size2M => self.without(PteFlags::HUGE).at_part(index, PageSize::Size4K),
            PageSize::Size4K => self,
        }
    }

    const fn at_part(self, index: usize, size: PageSize) -> Pte {
        Pte(self.0 + index as u64 * size.bytes())
    }
}

impl std::fmt::Debug for Pte {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pte({:#x}, {:?})", self.frame().address(), self.flags())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_are_where_the_processor_looks_for_them() {
        let pte = Pte::leaf(Frame::new(0x12345), PageSize::Size2M, PteFlags::WRITABLE | PteFlags::NO_EXECUTE);
        assert_eq!(pte.bits(), 1 << 63 | 0x1234_5000 | 0x83);
        assert_eq!(Pte::table(Frame::new(1)).bits(), 0x1007);
        assert_eq!(PteFlags::LOCK.bits(), 1 << 58);
        assert_eq!(Pte::from_bits(0x60).flags(), PteFlags::ACCESSED | PteFlags::DIRTY);
        assert!(!Pte::EMPTY.is_present());
    }

    #[test]
    fn parts_of_a_huge_page_are_its_memory_with_its_rights() {
        let flags = PteFlags::USER | PteFlags::DIRTY | PteFlags::SOFTWARE_52;
        let giant = Pte::leaf(Frame::new(0x40000), PageSize::Size1G, flags);
        let part = giant.part(PageSize::Size1G, 3);
        assert_eq!(part, Pte::leaf(Frame::new(0x40000 + 3 * 512), PageSize::Size2M, flags));
        let part = part.part(PageSize::Size2M, 511);
        assert_eq!(part, Pte::leaf(Frame::new(0x40000 + 4 * 512 - 1), PageSize::Size4K, flags));
    }

    proptest! {
        #[test]
        fn address_and_flags_do_not_mix(number in 0u64..1 << 40, bits: u64) {
            let flags = PteFlags::from_bits_truncate(bits) - PteFlags::HUGE;
            let pte = Pte::new(Frame::new(number), flags);
            prop_assert_eq!(pte.frame(), Frame::new(number));
            prop_assert_eq!(pte.flags(), flags);
            prop_assert_eq!(pte.at(Frame::new(7)).flags(), flags);
            prop_assert_eq!(pte.with(PteFlags::LOCK).without(PteFlags::LOCK), pte.without(PteFlags::LOCK));
        }
    }
}
