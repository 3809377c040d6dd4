//! The allocator of the libraries that are preloaded into unmodified programs (`scan-preload`, `snapshot-preload`).
//!
//! Such a library must not call the program's `malloc`. The program's allocator may hold its locks when the library needs memory: while
//! the program maps memory or forks, or while a signal handler of the program interrupts `malloc`. So [`PrivateAllocator`] has memory of
//! its own, which it maps by bare system calls: a library may replace the C library's `mmap`.
//!
//! A library makes it the allocator of its Rust code:
//!
//! ```
//! use bedplate_preload_allocator::PrivateAllocator;
//!
//! #[global_allocator]
//! static ALLOCATOR: PrivateAllocator = PrivateAllocator::new();
//!
//! // Around a fork, the thread that forks holds the allocator. Its child finds the allocator unlocked and whole.
//! let locked = ALLOCATOR.lock();
//! // SAFETY: the child ends at once.
//! match unsafe { libc::fork() } {
//!     0 => {
//!         drop(locked);
//!         let text = String::from("the child can allocate");
//!         unsafe { libc::_exit(i32::from(text.is_empty())) }
//!     }
//!     child => {
//!         drop(locked);
//!         let mut status = 0;
//!         assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
//!         assert_eq!(status, 0);
//!     }
//! }
//! ```
//!
//! # Locks
//! One, which every allocation takes. Nothing is called under it that allocates.

#![cfg(target_os = "linux")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// An allocator that uses nothing of the program's.
pub struct PrivateAllocator(Mutex<Dlmalloc<KernelMemory>>);

/// The allocator is locked until this is dropped: a thread that allocates waits.
#[must_use]
pub struct LockedAllocator<'a>(
    #[expect(dead_code, reason = "it unlocks when it is dropped")] MutexGuard<'a, Dlmalloc<KernelMemory>>,
);

impl PrivateAllocator {
    /// An allocator without memory. It maps memory when it needs some.
    pub const fn new() -> Self {
        Self(Mutex::new(Dlmalloc::new_with_allocator(KernelMemory)))
    }

    /// Locks the allocator. A thread that forks holds the lock across the fork, because a child inherits the allocator as it is at that
    /// moment. The thread must not allocate or free memory while it holds the lock.
    pub fn lock(&self) -> LockedAllocator<'_> {
        LockedAllocator(self.dlmalloc())
    }

    fn dlmalloc(&self) -> MutexGuard<'_, Dlmalloc<KernelMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for PrivateAllocator {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: `Dlmalloc` gives memory of the layout that it is asked for, and the lock keeps calls apart.
unsafe impl GlobalAlloc for PrivateAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        unsafe { self.dlmalloc().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: memory of this allocator, of the caller's layout.
        unsafe { self.dlmalloc().free(at, layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        unsafe { self.dlmalloc().calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: memory of this allocator, of the caller's layout.
        unsafe { self.dlmalloc().realloc(at, layout.size(), layout.align(), size) }
    }
}

/// The memory that `Dlmalloc` divides: private mappings.
struct KernelMemory;

// SAFETY: each mapping is this allocator's alone, and the kernel's answers are passed on.
unsafe impl dlmalloc::Allocator for KernelMemory {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        match unsafe { mmap_anonymous(ptr::null_mut(), size, access, MapFlags::PRIVATE) } {
            Ok(at) => (at.cast(), size, 0),
            Err(_) => (ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, at: *mut u8, old: usize, new: usize, may_move: bool) -> *mut u8 {
        let flags = if may_move { MremapFlags::MAYMOVE } else { MremapFlags::empty() };
        // SAFETY: a mapping of this allocator.
        unsafe { mremap(at.cast(), old, new, flags) }.map_or(ptr::null_mut(), <*mut _>::cast)
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the end of a mapping of this allocator.
        unsafe { munmap(at.wrapping_add(new).cast(), old - new) }.is_ok()
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: a mapping of this allocator.
        unsafe { munmap(at.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    /// This is called under the lock. `rustix::param::page_size` may allocate when it is called first; the C library's function does not.
    fn page_size(&self) -> usize {
        // SAFETY: a function without conditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).expect("the C library knows the size of a page")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// Memory of an allocator, with a content by which it is recognized.
    struct Piece<'a> {
        allocator: &'a PrivateAllocator,
        at: *mut u8,
        layout: Layout,
        seed: u8,
    }

    impl<'a> Piece<'a> {
        fn new(allocator: &'a PrivateAllocator, size: usize, align: usize, seed: u8) -> Self {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the layout has a size.
            let at = unsafe { allocator.alloc(layout) };
            assert!(!at.is_null() && (at as usize).is_multiple_of(align));
            let piece = Self { allocator, at, layout, seed };
            // SAFETY: memory of that size.
            (0..size).for_each(|index| unsafe { at.add(index).write(piece.byte(index)) });
            piece
        }

        fn byte(&self, index: usize) -> u8 {
            self.seed.wrapping_add((index / 7) as u8)
        }

        fn check(&self, size: usize) {
            // SAFETY: memory that was written to, of at least that size.
            let bytes = unsafe { std::slice::from_raw_parts(self.at, size) };
            assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == self.byte(index)));
        }

        /// Changes the size, and checks what is left of the content.
        fn resize(&mut self, size: usize) {
            // SAFETY: the piece's memory and layout.
            self.at = unsafe { self.allocator.realloc(self.at, self.layout, size) };
            assert!(!self.at.is_null() && (self.at as usize).is_multiple_of(self.layout.align()));
            self.check(size.min(self.layout.size()));
            self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
            // SAFETY: memory of that size.
            (0..size).for_each(|index| unsafe { self.at.add(index).write(self.byte(index)) });
        }
    }

    impl Drop for Piece<'_> {
        fn drop(&mut self) {
            self.check(self.layout.size());
            // SAFETY: the piece's memory and layout.
            unsafe { self.allocator.dealloc(self.at, self.layout) };
        }
    }

    #[test]
    fn pieces_of_any_size_and_alignment_keep_their_content() {
        let allocator = PrivateAllocator::new();
        let mut pieces = Vec::new();
        for (seed, size) in (0..).zip([1, 8, 100, 4096, 70_000, 1 << 20, 5 << 20]) {
            pieces.extend([1, 16, 64, 4096].map(|align| Piece::new(&allocator, size, align, seed)));
        }
        pieces.iter_mut().for_each(|piece| piece.resize(piece.layout.size() * 3));
        pieces.iter_mut().rev().for_each(|piece| piece.resize(piece.layout.size() / 5 + 1));
        drop(pieces);
    }

    #[test]
    fn zeroed_memory_is_zeroed_where_it_was_used_before() {
        let allocator = PrivateAllocator::new();
        for size in [100, 10_000, 1 << 20] {
            drop(Piece::new(&allocator, size, 8, 1));
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the layout has a size; the memory has it, and is given back by it.
            unsafe {
                let at = allocator.alloc_zeroed(layout);
                assert!(std::slice::from_raw_parts(at, size).iter().all(|byte| *byte == 0));
                allocator.dealloc(at, layout);
            }
        }
    }

    #[test]
    fn a_size_without_addresses_is_refused() {
        let allocator = PrivateAllocator::new();
        let layout = Layout::from_size_align(1 << 60, 8).unwrap();
        // SAFETY: the layout has a size.
        assert!(unsafe { allocator.alloc(layout) }.is_null());
        drop(Piece::new(&allocator, 100, 8, 1));
    }

    #[test]
    fn threads_share_an_allocator() {
        let allocator = PrivateAllocator::new();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let allocator = &allocator;
                scope.spawn(move || {
                    let mut pieces = Vec::new();
                    for round in 0..2000 {
                        pieces.push(Piece::new(allocator, round * 37 % 3000 + 1, 8, seed));
                        if round % 3 == 0 {
                            pieces.swap_remove(round * 7 % pieces.len());
                        }
                    }
                });
            }
        });
    }

    /// Bytes that the C library's allocator has given away.
    fn c_library_bytes() -> usize {
        // SAFETY: a function without conditions.
        let info = unsafe { libc::mallinfo2() };
        info.uordblks + info.hblkhd
    }

    #[test]
    fn the_c_library_s_allocator_is_not_used() {
        let before = c_library_bytes();
        let allocator = PrivateAllocator::new();
        let pieces: [_; 64] = std::array::from_fn(|_| Piece::new(&allocator, 1 << 20, 8, 1));
        // Other tests of this process use the C library's allocator.
        assert!(c_library_bytes() < before + (32 << 20));
        drop(pieces);
    }

    #[test]
    fn an_allocation_waits_until_the_allocator_is_unlocked() {
        let (allocator, has_allocated) = (PrivateAllocator::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let locked = allocator.lock();
            scope.spawn(|| {
                drop(Piece::new(&allocator, 100, 8, 1));
                has_allocated.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!has_allocated.load(Ordering::SeqCst));
            drop(locked);
        });
        assert!(has_allocated.load(Ordering::SeqCst));
    }

    #[test]
    fn a_child_finds_the_allocator_whole_beside_threads_that_allocate() {
        let (allocator, is_over) = (PrivateAllocator::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (allocator, is_over) = (&allocator, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(Piece::new(allocator, 3000, 8, seed));
                    }
                });
            }
            for _ in 0..100 {
                let locked = allocator.lock();
                // SAFETY: the child uses this allocator and nothing else, and ends.
                let child = unsafe { libc::fork() };
                drop(locked);
                if child == 0 {
                    // A child that waits for ever is ended by this.
                    // SAFETY: functions without conditions.
                    unsafe { libc::alarm(30) };
                    drop(Piece::new(&allocator, 3000, 8, 3));
                    // SAFETY: likewise.
                    unsafe { libc::_exit(0) };
                }
                let mut status = 0;
                // SAFETY: the status is this function's.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
