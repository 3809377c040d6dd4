//! Settings of the C library's allocator for a server that runs for a long time.

use std::ffi::c_int;

/// Blocks from this size on are mappings of their own.
const MAPPED_BYTES: c_int = 128 << 10;

/// Makes the allocator unmap a large block when it is freed.
///
/// By default the allocator raises its threshold when it frees a mapped block, and then takes large blocks from its heaps.
/// A heap shrinks only at its end. So after a peak, for example of the log while the disk stalls, one small block
/// would keep all free memory before it in the process.
pub fn give_large_blocks_back() {
    // SAFETY: sets a number in the allocator.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of blocks that are mappings of their own.
    fn mapped_bytes() -> usize {
        // SAFETY: reads the allocator's counters.
        unsafe { libc::mallinfo2() }.hblkhd
    }

    /// Far above what other tests allocate at the same time.
    const BLOCK: usize = 30 << 20;

    #[test]
    fn large_blocks_are_mappings_also_after_some_were_freed() {
        give_large_blocks_back();
        drop(std::hint::black_box(Vec::<u8>::with_capacity(BLOCK)));
        let before = mapped_bytes();
        let block = std::hint::black_box(Vec::<u8>::with_capacity(BLOCK));
        let during = mapped_bytes();
        drop(block);
        assert!(during >= before + BLOCK / 2, "{before} {during}");
        assert!(mapped_bytes() <= during - BLOCK / 2);
    }
}
