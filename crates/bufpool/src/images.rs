//! Consecutive images of several pages, outside the pool.

use std::ops::Range;

use crate::page::Image;
use crate::page_size::PageSize;

/// Consecutive images of pages of one size.
#[derive(Clone, Copy)]
pub(crate) struct Images<'i> {
    /// A whole number of pages.
    bytes: &'i [u8],
    size: PageSize,
}

impl<'i> Images<'i> {
    /// The images in these bytes.
    ///
    /// # Panics
    /// If the bytes are not whole pages.
    pub fn new(bytes: &'i [u8], size: PageSize) -> Self {
        assert!(bytes.len().is_multiple_of(size.bytes()), "whole pages");
        Self { bytes, size }
    }

    /// Bytes of each image.
    pub fn size(self) -> PageSize {
        self.size
    }

    /// Number of images.
    pub fn len(self) -> usize {
        self.bytes.len() >> self.size.shift()
    }

    pub fn bytes(self) -> &'i [u8] {
        self.bytes
    }

    pub fn iter(self) -> impl Iterator<Item = &'i Image> {
        self.bytes.chunks_exact(self.size.bytes())
    }

    /// Some of the images.
    pub fn range(self, range: Range<usize>) -> Self {
        let shift = self.size.shift();
        Self { bytes: &self.bytes[range.start << shift..range.end << shift], size: self.size }
    }

    /// The first `count` images, and the others.
    pub fn split_at(self, count: usize) -> (Self, Self) {
        (self.range(0..count), self.range(count..self.len()))
    }

    /// Each image alone.
    pub fn singly(self) -> impl Iterator<Item = Self> {
        self.iter().map(move |bytes| Self { bytes, size: self.size })
    }
}
