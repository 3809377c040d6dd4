//! The number of a frame, and copying its contents.

/// The number of a frame of 4 KiB in guest-physical memory: its address without the twelve low bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Frame(u64);

impl Frame {
    /// Frame number `number`.
    #[inline]
    pub const fn new(number: u64) -> Frame {
        Frame(number)
    }

    /// The frame that a guest-physical address is in.
    #[inline]
    pub const fn containing(address: u64) -> Frame {
        Frame(address >> 12)
    }

    /// Its number.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The guest-physical address of its first byte.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0 << 12
    }

    /// The frame `count` behind it.
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

/// Copies the contents of a frame to another, from where the process sees the one to where it sees the other, without
/// calling anything: for handlers of page faults.
///
/// # Safety
/// `from` can be read and `to` can be written, 4096 bytes each, aligned to them, and nobody else uses `to` meanwhile.
#[inline]
pub unsafe fn copy_frame(to: *mut u8, from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the caller's promise. (The direction flag is clear in all Rust code.)
    unsafe {
        std::arch::asm!(
            "rep movsq", inout("rcx") 512 => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, 4096);
    }
}
