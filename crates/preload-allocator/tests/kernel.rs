//! Memory that is freed goes back to the kernel. This test has a process of its own, because other threads would map memory, too.

use std::alloc::{GlobalAlloc, Layout};

use bedplate_preload_allocator::PrivateAllocator;

/// Bytes of memory that the process has from the kernel.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn large_memory_is_given_back_to_the_kernel() {
    const LARGE: usize = 64 << 20;
    let allocator = PrivateAllocator::new();
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    // SAFETY: the layouts have a size; the memory is written to within them and given back by them.
    unsafe {
        // Other memory of the allocator stays.
        let small = allocator.alloc(layout(100));
        let before = resident_bytes();
        let large = allocator.alloc(layout(LARGE));
        large.write_bytes(1, LARGE);
        assert!(resident_bytes() >= before + LARGE as u64);
        allocator.dealloc(large, layout(LARGE));
        assert!(resident_bytes() < before + LARGE as u64 / 8);
        allocator.dealloc(small, layout(100));
    }
}
