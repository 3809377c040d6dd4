//! Where pages are when they are not in memory.

mod file;
mod ring;

use std::io;
use std::marker::PhantomData;
use std::ops::Range;

pub use file::File;

use crate::error::{Error, Result};
use crate::page::{Image, PAGE, PageId};

/// A file or a block device, or what a test puts in its place. Pages are numbered from 0.
///
/// One call has several operations, which may run at once and in any order; each gets its own result. An operation that
/// succeeded has been done whole.
pub trait Storage: Send + Sync {
    /// Reads pages. What was never written reads as zeros.
    fn read(&self, reads: &mut [Read<'_>]);

    /// Reads pages and tells of each one, by its index, as soon as it has been read.
    fn read_each(&self, reads: &mut [Read<'_>], done: &mut dyn FnMut(usize, io::Result<()>)) {
        self.read(reads);
        for (index, read) in reads.iter_mut().enumerate() {
            done(index, std::mem::replace(&mut read.result, Ok(())));
        }
    }

    /// Writes pages.
    fn write(&self, writes: &mut [Write<'_>]);

    /// Returns when everything whose writing was reported before this call is durable.
    fn sync(&self) -> io::Result<()>;

    /// Makes room for pages, which are zeros from then on, so that writing them does not fail for want of space where that can
    /// be promised.
    fn grow(&self, pages: Range<u64>) -> io::Result<()>;

    /// How many pages it can ever have, where that is known: a device does not grow.
    fn limit(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// A page of these, or their end, from which on none was ever written, as far as that is known without reading them.
    fn written_end(&self, pages: Range<u64>) -> u64 {
        pages.end
    }
}

/// Reads pages from one on, all of them or with the first error.
pub(crate) fn read(storage: &dyn Storage, first: u64, images: &mut [Image]) -> Result<()> {
    let mut reads: Vec<_> =
        (first..).zip(images).map(|(page, image)| Read::into_image(page, image)).collect();
    storage.read(&mut reads);
    for read in reads {
        let page = PageId(read.page());
        read.result.map_err(|source| Error::Read { page, source })?;
    }
    Ok(())
}

/// A page to be read.
pub struct Read<'m> {
    page: u64,
    memory: *mut u8,
    /// How it went.
    pub result: io::Result<()>,
    lifetime: PhantomData<&'m mut Image>,
}

// SAFETY: it stands for exclusive access to the memory of a page.
unsafe impl Send for Read<'_> {}

impl<'m> Read<'m> {
    /// Reads into a buffer.
    pub fn into_image(page: u64, image: &'m mut [u8; PAGE]) -> Self {
        Self { page, memory: image.as_mut_ptr(), result: Ok(()), lifetime: PhantomData }
    }

    /// Reads into a page of the pool.
    ///
    /// # Safety
    /// Nobody else writes the memory, and nobody believes it, as long as this lives. It is a page, and aligned.
    pub(crate) unsafe fn into_page(page: u64, memory: *mut u8) -> Self {
        Self { page, memory, result: Ok(()), lifetime: PhantomData }
    }

    /// Which page.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Where its [`PAGE`] bytes go. They are aligned to the size of a page.
    pub fn memory(&mut self) -> *mut u8 {
        self.memory
    }
}

/// Neighbouring pages to be written.
pub struct Write<'m> {
    page: u64,
    images: &'m [Image],
    /// How it went.
    pub result: io::Result<()>,
}

impl<'m> Write<'m> {
    /// Writes pages from this one on. They are aligned to the size of a page.
    pub fn new(page: u64, images: &'m [[u8; PAGE]]) -> Self {
        Self { page, images, result: Ok(()) }
    }

    /// The first page.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// The pages.
    pub(crate) fn images(&self) -> &'m [Image] {
        self.images
    }

    /// What to write.
    pub fn bytes(&self) -> &'m [u8] {
        self.images.as_flattened()
    }
}
