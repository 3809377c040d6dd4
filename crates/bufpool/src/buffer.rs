//! Memory for copies of pages, aligned as direct I/O needs it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::images::Images;
use crate::page::{Image, PAGE};
use crate::page_size::PageSize;

/// Maximum number of pages that are read or written together.
pub(crate) const TOGETHER: usize = 64;

/// Consecutive pages.
pub(crate) struct Buffer {
    memory: NonNull<u8>,
    pages: usize,
    size: PageSize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads, as with a boxed slice.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `pages` pages of zeros.
    pub fn new(size: PageSize, pages: usize) -> Self {
        let layout = Self::layout(size, pages);
        assert!(layout.size() > 0);
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, pages, size }
    }

    fn layout(size: PageSize, pages: usize) -> Layout {
        // Direct I/O needs memory that is aligned to a block. No device has larger ones.
        Layout::from_size_align(pages << size.shift(), PAGE).expect("buffers are small")
    }

    fn bytes_of(&self, pages: Range<usize>) -> Range<usize> {
        pages.start << self.size.shift()..pages.end << self.size.shift()
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this length, initialised, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.pages << self.size.shift()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.pages << self.size.shift()) }
    }

    /// All pages.
    pub fn all(&self) -> Images<'_> {
        Images::new(self.bytes(), self.size)
    }

    /// Some of the pages.
    pub fn images(&self, pages: Range<usize>) -> Images<'_> {
        self.all().range(pages)
    }

    /// Page `index`.
    pub fn image(&self, index: usize) -> &Image {
        &self.bytes()[self.bytes_of(index..index + 1)]
    }

    /// Page `index`, for changes.
    pub fn image_mut(&mut self, index: usize) -> &mut Image {
        let bytes = self.bytes_of(index..index + 1);
        &mut self.bytes_mut()[bytes]
    }

    /// Some of the pages, for changes.
    pub fn images_mut(&mut self, pages: Range<usize>) -> impl Iterator<Item = &mut Image> {
        let (bytes, size) = (self.bytes_of(pages), self.size.bytes());
        self.bytes_mut()[bytes].chunks_exact_mut(size)
    }

    /// Copies images into the pages from `at` on.
    pub fn put(&mut self, at: usize, images: Images<'_>) {
        let bytes = self.bytes_of(at..at + images.len());
        self.bytes_mut()[bytes].copy_from_slice(images.bytes());
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.size, self.pages)) };
    }
}

/// Buffers of one size, which are reused because memory that was touched once stays fast. The lock is a leaf.
pub(crate) struct Buffers {
    size: PageSize,
    pages: usize,
    spare: Mutex<Vec<Buffer>>,
}

impl Buffers {
    pub fn new(size: PageSize, pages: usize) -> Self {
        Self { size, pages, spare: Mutex::new(Vec::new()) }
    }

    pub fn take(&self) -> Buffer {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Buffer::new(self.size, self.pages))
    }

    pub fn put(&self, buffer: Buffer) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
