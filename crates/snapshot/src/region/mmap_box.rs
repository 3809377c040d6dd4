//! Memory outside of the heap. Fault handlers write to it while writers to the heap wait for them, and the heap may
//! be the region.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::engine::{Arena, Engine};

fn map(bytes: usize) -> Result<NonNull<u8>, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    Ok(NonNull::new(at.cast()).expect("a mapping is not at address 0"))
}

/// A value in a mapping of its own.
pub struct MmapBox<T: ?Sized>(NonNull<T>);

// SAFETY: it owns its value like a box.
unsafe impl<T: Send + ?Sized> Send for MmapBox<T> {}
// SAFETY: as above.
unsafe impl<T: Sync + ?Sized> Sync for MmapBox<T> {}

impl<T> MmapBox<T> {
    pub fn new(value: T) -> Result<Self, Errno> {
        let at = map(size_of::<T>())?.cast::<T>();
        // SAFETY: new memory of this size, aligned to pages.
        unsafe { at.write(value) };
        Ok(Self(at))
    }
}

impl<E: Engine> MmapBox<E> {
    pub fn into_engine(self) -> MmapBox<dyn Engine> {
        MmapBox(ManuallyDrop::new(self).0)
    }
}

impl<A: Arena> MmapBox<A> {
    pub fn into_arena(self) -> MmapBox<dyn Arena> {
        MmapBox(ManuallyDrop::new(self).0)
    }
}

impl<T: ?Sized> Deref for MmapBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written by `new`, and mapped as long as this value exists.
        unsafe { self.0.as_ref() }
    }
}

impl<T: ?Sized> Drop for MmapBox<T> {
    fn drop(&mut self) {
        let bytes = size_of_val(&**self);
        // SAFETY: written by `new`; dropped and unmapped only here.
        unsafe {
            self.0.drop_in_place();
            let _ = munmap(self.0.as_ptr().cast(), bytes);
        }
    }
}

/// Types for which memory of zeros is valid.
///
/// # Safety
/// Zero bytes must be a valid value.
pub unsafe trait Zero {}
// SAFETY: an integer.
unsafe impl Zero for std::sync::atomic::AtomicU32 {}
// SAFETY: an integer.
unsafe impl Zero for std::sync::atomic::AtomicU64 {}

/// An array that uses memory only where it was written. Forked children inherit it or not, as chosen in `new`.
pub struct MmapArray<T> {
    at: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its elements like a vector.
unsafe impl<T: Send> Send for MmapArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for MmapArray<T> {}

impl<T: Zero> MmapArray<T> {
    /// Creates an array of zeros.
    pub fn new(len: usize, for_children: bool) -> Result<Self, Errno> {
        let bytes = (len * size_of::<T>()).next_multiple_of(crate::PAGE);
        let at = map(bytes)?;
        if !for_children {
            // SAFETY: the mapping made above.
            unsafe { madvise(at.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        }
        Ok(Self { at: at.cast(), len })
    }
}

impl<T> Deref for MmapArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: mapped as long as this value exists; zero is a valid value.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T> Drop for MmapArray<T> {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<T>()).next_multiple_of(crate::PAGE);
        // SAFETY: this array's own mapping.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), bytes) };
    }
}
