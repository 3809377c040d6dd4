//! Memory for copies of pages, aligned as direct I/O needs it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::page::{Image, PAGE};

/// The most pages that are read or written together.
pub(crate) const TOGETHER: usize = 64;

/// Some pages, one behind the other.
pub(crate) struct Buffer {
    memory: NonNull<Image>,
    pages: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Buffer {}
// SAFETY: as a boxed slice.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeros.
    pub fn new(pages: usize) -> Self {
        let layout = Self::layout(pages);
        assert!(layout.size() > 0);
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory.cast()) else { handle_alloc_error(layout) };
        Self { memory, pages }
    }

    fn layout(pages: usize) -> Layout {
        Layout::from_size_align(pages * PAGE, PAGE).expect("buffers are small")
    }
}

impl Deref for Buffer {
    type Target = [Image];

    fn deref(&self) -> &[Image] {
        // SAFETY: allocated so, initialised, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.pages) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [Image] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.pages) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr().cast(), Self::layout(self.pages)) };
    }
}

/// Buffers of one size, used again: memory that was touched once stays fast. Its lock is a leaf.
pub(crate) struct Buffers {
    pages: usize,
    spare: Mutex<Vec<Buffer>>,
}

impl Buffers {
    pub fn new(pages: usize) -> Self {
        Self { pages, spare: Mutex::new(Vec::new()) }
    }

    pub fn take(&self) -> Buffer {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Buffer::new(self.pages))
    }

    pub fn give(&self, buffer: Buffer) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
