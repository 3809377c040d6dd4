//! The library's own memory, apart from the program's: a signal handler may read while it interrupts the program's allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

#[global_allocator]
static ALLOCATOR: Own = Own(Mutex::new(Dlmalloc::new_with_allocator(Mappings)));

struct Own(Mutex<Dlmalloc<Mappings>>);

/// Has the allocator wait until it is dropped.
pub struct Held(#[expect(dead_code, reason = "dropped")] MutexGuard<'static, Dlmalloc<Mappings>>);

/// Has the allocator wait, so that a child that is forked meanwhile finds it whole.
pub fn hold() -> Held {
    Held(ALLOCATOR.lock())
}

impl Own {
    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Mappings>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the allocator does what the trait asks for, one call at a time.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.lock().free(at, layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        unsafe { self.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { self.lock().realloc(at, layout.size(), layout.align(), size) }
    }
}

/// Memory of the kernel's.
struct Mappings;

// SAFETY: mappings of this allocator's alone, whose results are passed on.
unsafe impl dlmalloc::Allocator for Mappings {
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
        // SAFETY: a mapping of this allocator's.
        unsafe { mremap(at.cast(), old, new, flags) }.map_or(ptr::null_mut(), <*mut _>::cast)
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the end of a mapping of this allocator's.
        unsafe { munmap(at.wrapping_add(new).cast(), old - new) }.is_ok()
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: a mapping of this allocator's.
        unsafe { munmap(at.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        rustix::param::page_size()
    }
}
