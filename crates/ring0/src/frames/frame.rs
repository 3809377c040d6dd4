//! Frame numbers.

/// The number of a frame of 4 KiB in guest-physical memory: the address without its twelve low bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Frame(u64);

impl Frame {
    /// Creates the frame with number `number`.
    #[inline]
    pub const fn new(number: u64) -> Frame {
        Frame(number)
    }

    /// The frame that contains a guest-physical address.
    #[inline]
    pub const fn containing(address: u64) -> Frame {
        Frame(address >> 12)
    }

    /// The number of the frame.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The guest-physical address of its first byte.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0 << 12
    }

    /// The frame that is `count` frames behind this one.
    #[inline]
    pub const fn offset(self, count: u64) -> Frame {
        Frame(self.0.wrapping_add(count))
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({:#x})", self.0)
    }
}
