//! Storage: the place of pages that are not in memory.

mod file;
mod queue;
mod ring;
mod ring_queue;

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

pub use file::File;
pub(crate) use queue::AtOnce;
pub use queue::{WriteBatch, WriteQueue};

use crate::access::payload::page_words;
use crate::error::{Error, Result};
use crate::images::Images;
use crate::page::{Image, PageId};
use crate::page_size::PageSize;
use crate::protocol::words::{self, WORD};

/// A file or a block device, or a test's replacement for one.
///
/// Storage is addressed in blocks of [`PAGE`](crate::PAGE) bytes, which are numbered from 0. A page is one block, or 2, 4, 8
/// or 16 of them ([`PageSize`]). Reads and writes have the block and the length. Ranges and limits count blocks.
///
/// One call has several operations, which may run at once and in any order. Each gets its own result. An operation that succeeded
/// has been done completely.
pub trait Storage: Send + Sync {
    /// Reads pages. A page that was never written reads as zeros.
    fn read(&self, reads: &mut [Read<'_>]);

    /// Reads pages, and calls `done` with the index and the result of each page as soon as it has been read.
    fn read_each(&self, reads: &mut [Read<'_>], done: &mut dyn FnMut(usize, io::Result<()>)) {
        self.read(reads);
        for (index, read) in reads.iter_mut().enumerate() {
            done(index, std::mem::replace(&mut read.result, Ok(())));
        }
    }

    /// Writes pages.
    fn write(&self, writes: &mut [Write<'_>]);

    /// A queue with which one thread has several batches of writes in flight. At most `depth` writes are in flight, and no batch
    /// has more than that. None if this storage has no such queue; then [`Storage::write`] writes one batch at a time.
    fn write_queue(&self, depth: usize) -> Option<Box<dyn WriteQueue + '_>> {
        let _ = depth;
        None
    }

    /// Returns when all writes that were reported before this call are durable.
    fn sync(&self) -> io::Result<()>;

    /// Makes room for blocks, which are zeros from then on. If the storage can promise it, writes to them do not fail for lack of
    /// space.
    fn grow(&self, blocks: Range<u64>) -> io::Result<()>;

    /// Maximum number of blocks, if it is known: a device does not grow.
    fn limit(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Returns a block in the range, or the range's end. No block from there on was ever written, as far as the storage knows
    /// without reading.
    fn written_end(&self, blocks: Range<u64>) -> u64 {
        blocks.end
    }
}

/// Reads consecutive pages. Fails with the first error.
pub(crate) fn read<'i>(
    storage: &dyn Storage,
    first: u64,
    images: impl Iterator<Item = &'i mut Image>,
) -> Result<()> {
    let mut reads: Vec<_> = (first..).zip(images).map(|(page, image)| Read::new(page, image)).collect();
    storage.read(&mut reads);
    for read in reads {
        let page = PageId(read.page());
        read.result.map_err(|source| Error::Read { page, source })?;
    }
    Ok(())
}

/// A read of a page.
pub struct Read<'m> {
    page: u64,
    size: PageSize,
    memory: *mut u8,
    /// The result of the read.
    pub result: io::Result<()>,
    lifetime: PhantomData<&'m mut Image>,
}

// SAFETY: a read stands for exclusive access to the memory of a page.
unsafe impl Send for Read<'_> {}

impl<'m> Read<'m> {
    /// Reads into a buffer. The length of the buffer is the page size.
    pub fn into_image<const N: usize>(page: u64, image: &'m mut [u8; N]) -> Self {
        const { assert!(PageSize::of(N).is_some()) };
        Self::new(page, image)
    }

    /// Reads into a buffer. The length of the buffer is the page size.
    pub(crate) fn new(page: u64, image: &'m mut Image) -> Self {
        let size = PageSize::of(image.len()).expect("an image has the size of a page");
        Self { page, size, memory: image.as_mut_ptr(), result: Ok(()), lifetime: PhantomData }
    }

    /// Reads into a page of the pool.
    ///
    /// # Safety
    /// The memory is a page of this size, and aligned to a block. While this value lives, no other thread writes the memory or uses
    /// its content.
    pub(crate) unsafe fn into_page(page: u64, size: PageSize, memory: *mut u8) -> Self {
        Self { page, size, memory, result: Ok(()), lifetime: PhantomData }
    }

    /// The page number, in pages of the size that is read.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// The page size.
    pub fn size(&self) -> PageSize {
        self.size
    }

    /// The first block of the page.
    pub fn block(&self) -> u64 {
        self.size.block(self.page)
    }

    /// The offset of the page in storage, in bytes.
    pub fn offset(&self) -> u64 {
        self.size.offset(self.page)
    }

    /// The memory that the kernel fills with the page. It has the length of the page, and is aligned to a block.
    ///
    /// Optimistic readers may read the memory meanwhile. Storage that has the bytes itself uses [`Read::fill`], because a plain
    /// write through this pointer would be a data race.
    pub fn memory(&mut self) -> *mut u8 {
        self.memory
    }

    /// Fills the memory with these bytes.
    ///
    /// # Panics
    /// If their length is not the page size.
    pub fn fill(&mut self, image: &[u8]) {
        assert_eq!(image.len(), self.size.bytes(), "the image of a page has its size");
        words::store(self.words(), 0, image);
    }

    /// Fills the memory with these bytes, from byte `at` on.
    ///
    /// # Panics
    /// If they do not fit into the page.
    pub fn fill_part(&mut self, at: usize, bytes: &[u8]) {
        words::store(self.words(), at, bytes);
    }

    /// Fills the memory with zeros, from byte `at` on.
    pub fn fill_zeros(&mut self, at: usize) {
        let end = self.size.bytes();
        words::fill(self.words(), at..end, 0);
    }

    fn words(&mut self) -> &[AtomicU64] {
        assert!(self.memory.addr().is_multiple_of(WORD), "pages are aligned");
        // SAFETY: this stands for exclusive access to the memory. All other accesses are reads of words.
        unsafe { page_words(self.memory, self.size) }
    }
}

/// A write of consecutive pages.
pub struct Write<'m> {
    page: u64,
    images: Images<'m>,
    /// The result of the write.
    pub result: io::Result<()>,
}

impl<'m> Write<'m> {
    /// Writes pages from this one on. The length of an image is the page size. The images are aligned to a block.
    pub fn new<const N: usize>(page: u64, images: &'m [[u8; N]]) -> Self {
        const { assert!(PageSize::of(N).is_some()) };
        let size = PageSize::of(N).expect("checked above");
        Self::of(page, Images::new(images.as_flattened(), size))
    }

    pub(crate) fn of(page: u64, images: Images<'m>) -> Self {
        Self { page, images, result: Ok(()) }
    }

    /// The number of the first page, in pages of the size that is written.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// The page size.
    pub fn size(&self) -> PageSize {
        self.images.size()
    }

    /// The first block. Each block has [`PAGE`](crate::PAGE) of the [`Write::bytes`].
    pub fn block(&self) -> u64 {
        self.size().block(self.page)
    }

    /// The offset of the first page in storage, in bytes.
    pub fn offset(&self) -> u64 {
        self.size().offset(self.page)
    }

    /// The pages.
    pub(crate) fn images(&self) -> Images<'m> {
        self.images
    }

    /// The bytes to write.
    pub fn bytes(&self) -> &'m [u8] {
        self.images.bytes()
    }
}
