//! Writes that begin in one call and end in another, so that one thread has several batches in flight.
//!
//! A batch owns the memory of its images. So the memory outlives the writes, whatever happens to the thread that began them.

use std::io;
use std::ops::Range;

use super::{Storage, Write};
use crate::buffer::Buffer;
use crate::page_size::PageSize;

/// Pages that are written together, with the memory of their images.
pub struct WriteBatch {
    number: u64,
    images: Buffer,
    writes: Vec<QueuedWrite>,
}

/// Consecutive pages of a batch.
struct QueuedWrite {
    page: u64,
    images: Range<usize>,
    /// None until the write has ended.
    result: Option<io::Result<()>>,
}

impl WriteBatch {
    /// A batch with a number that the caller chooses. The pages have ascending numbers and are in the order of the images.
    pub(crate) fn new(number: u64, images: Buffer, pages: impl IntoIterator<Item = u64>) -> Self {
        let mut writes: Vec<QueuedWrite> = Vec::new();
        for (index, page) in pages.into_iter().enumerate() {
            match writes.last_mut() {
                // Consecutive pages are written at once.
                Some(write) if write.page + write.images.len() as u64 == page => write.images.end += 1,
                _ => writes.push(QueuedWrite { page, images: index..index + 1, result: None }),
            }
        }
        Self { number, images, writes }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Number of writes. They may run at once and in any order.
    pub fn count(&self) -> usize {
        self.writes.len()
    }

    /// The number of the first page of a write.
    ///
    /// # Panics
    /// If the index is not below [`WriteBatch::count`].
    pub fn page(&self, index: usize) -> u64 {
        self.writes[index].page
    }

    /// The page size.
    pub fn size(&self) -> PageSize {
        self.images.all().size()
    }

    /// The offset of a write in storage, in bytes.
    ///
    /// # Panics
    /// If the index is not below [`WriteBatch::count`].
    pub fn offset(&self, index: usize) -> u64 {
        self.size().offset(self.page(index))
    }

    /// The bytes of a write: whole pages, aligned to a block. Their address stays the same when the batch is moved.
    ///
    /// # Panics
    /// If the index is not below [`WriteBatch::count`].
    pub fn bytes(&self, index: usize) -> &[u8] {
        self.images.images(self.writes[index].images.clone()).bytes()
    }

    /// Stores the result of a write. A write that succeeded has been done completely.
    ///
    /// # Panics
    /// If the index is not below [`WriteBatch::count`].
    pub fn end(&mut self, index: usize, result: io::Result<()>) {
        self.writes[index].result = Some(result);
    }

    /// Whether a write has a result.
    pub(super) fn has_ended(&self, index: usize) -> bool {
        self.writes[index].result.is_some()
    }

    /// The writes with their results. A write without a result counts as failed.
    pub(crate) fn results(&mut self) -> Vec<Write<'_>> {
        let Self { images, writes, .. } = self;
        let with_result = |write: &mut QueuedWrite| {
            let result = write.result.take();
            let mut done = Write::of(write.page, images.images(write.images.clone()));
            done.result = result.unwrap_or_else(|| Err(io::Error::other("the storage did not do the write")));
            done
        };
        writes.iter_mut().map(with_result).collect()
    }

    pub(crate) fn into_images(self) -> Buffer {
        self.images
    }
}

/// A queue of batches that are being written. It belongs to one thread. Its drop waits for all writes that have begun, because
/// the pool may write the same pages again afterwards.
pub trait WriteQueue {
    /// Begins the writes of a batch. It may wait until they have ended.
    fn begin(&mut self, batch: WriteBatch);

    /// Returns batches whose writes have all ended, in any order. With `wait`, it returns at least one if any is in flight.
    fn ended(&mut self, wait: bool) -> Vec<WriteBatch>;
}

/// The queue of a storage that has none: it writes a batch when the batch begins.
pub(crate) struct AtOnce<'s> {
    storage: &'s dyn Storage,
    ended: Vec<WriteBatch>,
}

impl<'s> AtOnce<'s> {
    pub fn new(storage: &'s dyn Storage) -> Self {
        Self { storage, ended: Vec::new() }
    }
}

impl WriteQueue for AtOnce<'_> {
    fn begin(&mut self, mut batch: WriteBatch) {
        let images = &batch.images;
        let mut writes: Vec<Write<'_>> = batch
            .writes
            .iter()
            .map(|write| Write::of(write.page, images.images(write.images.clone())))
            .collect();
        self.storage.write(&mut writes);
        let results: Vec<io::Result<()>> = writes.into_iter().map(|write| write.result).collect();
        for (index, result) in results.into_iter().enumerate() {
            batch.end(index, result);
        }
        self.ended.push(batch);
    }

    fn ended(&mut self, _: bool) -> Vec<WriteBatch> {
        std::mem::take(&mut self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pages_are_one_write() {
        for size in PageSize::ALL {
            let mut batch = WriteBatch::new(7, Buffer::new(size, 5), [3, 4, 6, 8, 9]);
            assert_eq!((batch.number(), batch.count()), (7, 3));
            assert_eq!(batch.offset(2), 8 * size.bytes() as u64);
            let writes: Vec<_> =
                (0..3).map(|index| (batch.page(index), batch.bytes(index).len() / size.bytes())).collect();
            assert_eq!(writes, [(3, 2), (6, 1), (8, 2)]);
            batch.end(0, Ok(()));
            batch.end(2, Err(io::ErrorKind::StorageFull.into()));
            assert!(batch.has_ended(0) && !batch.has_ended(1));
            let results: Vec<bool> = batch.results().iter().map(|write| write.result.is_ok()).collect();
            assert_eq!(results, [true, false, false], "a write without a result failed");
        }
    }
}
