//! Memory shared with the kernel: array maps and arenas.
//!
//! The eBPF programs change this memory concurrently. User space therefore accesses it through raw pointers and
//! atomics only, never through references to plain data.

use std::{
    ffi::c_void,
    marker::PhantomData,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::{Error, Result};

/// Size of an arena's address window; arenas are aligned to it so that offsets are low halves.
const WINDOW: u64 = 1 << 32;
/// The addresses in which windows are reserved: far from the heap, the stack and the default area of `mmap`.
const WINDOWS_START: u64 = 0x1000_0000_0000;
const WINDOWS_END: u64 = 0x4000_0000_0000;

static NEXT_WINDOW: AtomicU64 = AtomicU64::new(WINDOWS_START);

/// An array map with `BPF_F_MMAPABLE`, mapped whole. Elements are `T`, at indices below `len`.
pub struct ArrayMapping<T> {
    base: NonNull<u8>,
    bytes: usize,
    stride: usize,
    len: u32,
    _element: PhantomData<*mut T>,
}

// SAFETY: the mapping is plain shared memory. All access goes through raw pointers that `get` returns; their
// users synchronize by the protocols of layout.h.
unsafe impl<T> Send for ArrayMapping<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ArrayMapping<T> {}

impl<T> ArrayMapping<T> {
    /// Maps the array map `fd` with `len` elements.
    pub fn new(fd: BorrowedFd<'_>, len: u32) -> Result<Self> {
        let stride = size_of::<T>().next_multiple_of(8);
        let bytes = (stride * len as usize).next_multiple_of(4096);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)
        }
        .map_err(|e| Error::io("cannot map a BPF array", e.into()))?;
        let base = NonNull::new(base.cast()).expect("mmap does not return null");
        Ok(ArrayMapping { base, bytes, stride, len, _element: PhantomData })
    }

    /// Pointer to element `index`, valid as long as the mapping. The kernel changes the element.
    pub fn get(&self, index: u32) -> *mut T {
        assert!(index < self.len, "array index {index} of {}", self.len);
        // SAFETY: the index is in bounds, so the element lies inside of the mapping.
        unsafe { self.base.as_ptr().add(self.stride * index as usize).cast() }
    }

    /// Number of elements.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Drop for ArrayMapping<T> {
    fn drop(&mut self) {
        // SAFETY: base and bytes are those of the mapping, and no pointer outlives `self` by contract.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// An address window of 4 GiB, reserved so that an arena can be mapped over it.
pub(crate) struct Reservation {
    base: *mut c_void,
}

// SAFETY: an address range has no thread affinity.
unsafe impl Send for Reservation {}
// SAFETY: a reservation is never accessed, only mapped over.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves a free window.
    pub(crate) fn new() -> Result<Self> {
        for _ in 0..4096 {
            let at = NEXT_WINDOW.fetch_add(WINDOW, Ordering::Relaxed);
            if at >= WINDOWS_END {
                NEXT_WINDOW.store(WINDOWS_START, Ordering::Relaxed);
                continue;
            }
            // SAFETY: FIXED_NOREPLACE never replaces an existing mapping.
            let mapped = unsafe {
                mmap_anonymous(
                    at as *mut c_void,
                    WINDOW as usize,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
                )
            };
            match mapped {
                Ok(base) if base as u64 == at => return Ok(Reservation { base }),
                // Kernels that do not know the flag treat the address as a hint.
                // SAFETY: this unmaps the mapping that was just made.
                Ok(base) => drop(unsafe { munmap(base, WINDOW as usize) }),
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => {
                    return Err(Error::io("cannot reserve 4 GiB of address space for an arena", e.into()));
                }
            }
        }
        Err(Error::Config("no free 4 GiB window in the address space for an arena".into()))
    }

    /// Address of the window.
    pub(crate) fn address(&self) -> u64 {
        self.base as u64
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the window is this reservation's own, whatever was mapped over it.
        let _ = unsafe { munmap(self.base, WINDOW as usize) };
    }
}

/// A mapped arena. Offsets are bounds-checked against its size; pages not committed yet are committed by
/// the first access.
pub(crate) struct ArenaMapping {
    window: Reservation,
    bytes: u64,
}

impl ArenaMapping {
    /// Owns the window into which libbpf has mapped an arena of `bytes` bytes.
    pub(crate) fn new(window: Reservation, bytes: u64) -> Self {
        ArenaMapping { window, bytes }
    }

    /// Pointer to a `T` at an offset; panics if it is not inside of the arena.
    pub(crate) fn at<T>(&self, offset: u64) -> *mut T {
        assert!(
            offset.checked_add(size_of::<T>() as u64).is_some_and(|end| end <= self.bytes),
            "arena offset {offset:#x} of {:#x}",
            self.bytes
        );
        (self.window.address() + offset) as *mut T
    }

    /// An atomic 64-bit word of the arena.
    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        debug_assert_eq!(offset % 8, 0);
        // SAFETY: in bounds (checked by `at`), aligned (offsets of words are multiples of 8), and mapped
        // as long as `self`; concurrent changes are atomic on both sides.
        unsafe { &*self.at::<AtomicU64>(offset) }
    }

    /// Consecutive words.
    pub(crate) fn words(&self, offset: u64, len: usize) -> &[AtomicU64] {
        debug_assert_eq!(offset % 8, 0);
        assert!(offset.checked_add(len as u64 * 8).is_some_and(|end| end <= self.bytes));
        // SAFETY: as in `word`; the range was checked.
        unsafe { std::slice::from_raw_parts(self.at::<AtomicU64>(offset), len) }
    }

    /// Bytes at an offset. The data's protocol guarantees that they do not change while they are borrowed.
    ///
    /// # Safety
    /// Nothing writes to the range for as long as the slice lives.
    pub(crate) unsafe fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        assert!(offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes));
        // SAFETY: in bounds and mapped; the caller guarantees that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.at::<u8>(offset), len) }
    }

    /// Pointer to a range; panics if it is not inside of the arena.
    pub(crate) fn range(&self, offset: u64, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes));
        (self.window.address() + offset) as *mut u8
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Backs `from..to` (page-aligned, not in use yet) with zeroed pages. The kernel side reads zeros from
    /// pages that are not backed, and loses its writes to them.
    pub(crate) fn commit(&self, from: u64, to: u64) {
        let start = self.range(from, (to - from) as usize);
        // SAFETY: the range is inside of the mapping; populating it changes no contents.
        if unsafe { madvise(start.cast(), (to - from) as usize, Advice::LinuxPopulateWrite) }.is_ok() {
            return;
        }
        // The kernel is too old to populate, or has no memory. In the second case touching a page ends the
        // process.
        for page in (from..to).step_by(4096) {
            // SAFETY: in bounds (checked by `at`), and nothing uses the page yet. The write is volatile, so
            // that the compiler does not remove it.
            unsafe { self.at::<u64>(page).write_volatile(0) };
        }
    }
}
