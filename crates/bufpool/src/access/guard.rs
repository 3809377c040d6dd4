//! Guards: a thread's access to a page that it holds or reads.
//!
//! A writer and optimistic readers may access a page at the same time. So a writer gets a [`PayloadMut`] instead of a
//! mutable slice, and an optimistic reader gets a [`Payload`]. A thread that holds a page exclusively or shared reads
//! it as a slice. This is sound because only the exclusive holder writes the page, and it cannot do so while the slice
//! is borrowed.

use std::ops::{Deref, Range};
use std::slice;

use crate::access::payload::{Payload, PayloadMut};
use crate::engine::FrameRef;
use crate::error::Restart;
use crate::page::{self, HEADER, PageId};
use crate::pool::Pool;
use crate::protocol::words::WORD;

/// A page that is held exclusively. It becomes dirty with the first change, and it is unlocked when the guard is
/// dropped.
///
/// The page is read as a slice. It is changed with [`Exclusive::write`] and the methods of [`Exclusive::payload_mut`],
/// not through a slice, because optimistic readers may read it at the same time.
///
/// A guard keeps its page in memory. A thread that holds pages may wait for another page, which a second thread holds.
/// So all threads must take pages in an order without circles.
#[must_use = "the page is unlocked when this is dropped"]
pub struct Exclusive<'p> {
    pool: &'p Pool,
    frame_ref: FrameRef<'p>,
    page: PageId,
    before: u64,
    modified: bool,
}

impl<'p> Exclusive<'p> {
    pub(crate) fn new(pool: &'p Pool, frame_ref: FrameRef<'p>, page: PageId, before: u64) -> Self {
        Self { pool, frame_ref, page, before, modified: false }
    }

    /// The page number.
    pub fn page(&self) -> PageId {
        self.page
    }

    /// The log sequence number of the page's last change.
    pub fn lsn(&self) -> u64 {
        // SAFETY: the page is locked, so no other thread writes it.
        unsafe { page::lsn_at(self.frame_ref.memory) }
    }

    /// Sets the number of the log record about the last change. The page is not written before that record is durable.
    pub fn set_lsn(&mut self, lsn: u64) {
        self.pool.last_lsn.note(lsn);
        self.store_lsn(lsn);
    }

    fn store_lsn(&mut self, lsn: u64) {
        self.modified = true;
        // SAFETY: the page is locked by this guard.
        unsafe { page::set_lsn_at(self.frame_ref.memory, lsn) };
    }

    /// The payload, as optimistic readers see it.
    #[inline(always)]
    pub fn payload(&self) -> &Payload {
        // SAFETY: the page stays in its memory while the guard lives, and only this guard writes it.
        unsafe { Payload::at(self.frame_ref.memory, self.pool.payload_words) }
    }

    /// The payload, for changes. The page is dirty from now on.
    #[inline(always)]
    pub fn payload_mut(&mut self) -> PayloadMut<'_> {
        self.modified = true;
        PayloadMut::new(self.payload())
    }

    /// Writes bytes from offset `at` of the payload on.
    ///
    /// # Panics
    /// If they do not fit into the payload.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.payload_mut().write(at, bytes);
    }

    /// Writes the same byte everywhere in a range of the payload.
    ///
    /// # Panics
    /// If the range is outside the payload.
    pub fn fill(&mut self, range: Range<usize>, byte: u8) {
        self.payload_mut().fill(range, byte);
    }

    /// Fills the payload with zeros and sets the log sequence number. Redo skips records up to that number.
    pub(crate) fn clear(&mut self, lsn: u64) {
        self.fill(0..self.pool.page_size().payload(), 0);
        self.store_lsn(lsn);
    }

    /// Marks the page as changed, so that it is written again although it has not changed.
    pub(crate) fn mark_modified(&mut self) {
        self.modified = true;
    }

    /// Writes to the memory without a change of its content, so that the kernel provides the memory.
    #[cfg(feature = "bench")]
    pub(crate) fn touch(&mut self) {
        self.payload().touch();
    }

    /// Unlocks a page that is no longer in use. With a log, the page is still written if it is dirty. The reason: a
    /// checkpoint may come between the records about the page and the record that frees it. A crash may lose the latter
    /// record.
    pub(crate) fn discard(self) {
        let word = self.frame_ref.state;
        match self.pool.log {
            Some(_) if self.modified => word.unlock_modified(self.before, self.pool.layout),
            Some(_) => word.unlock_freed(self.before, self.pool.layout),
            None => word.unlock_freed_clean(self.before, self.pool.layout),
        }
        std::mem::forget(self);
    }
}

impl Deref for Exclusive<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the page stays in its memory while the guard lives. Only this guard writes it, and not while it is
        // borrowed.
        unsafe { slice::from_raw_parts(self.frame_ref.memory.add(HEADER), self.pool.payload_words * WORD) }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if self.modified {
            self.frame_ref.state.unlock_modified(self.before, self.pool.layout);
        } else {
            self.frame_ref.state.unlock_unchanged();
        }
    }
}

/// A page that is held shared. No thread changes it meanwhile.
///
/// A thread that waits to hold the page exclusively keeps new shared holders out. So a thread must not hold a page
/// shared twice, and it must take shared pages in the same order as exclusive ones.
#[must_use = "the page is unlocked when this is dropped"]
pub struct Shared<'p> {
    pool: &'p Pool,
    frame_ref: FrameRef<'p>,
    page: PageId,
}

impl<'p> Shared<'p> {
    pub(crate) fn new(pool: &'p Pool, frame_ref: FrameRef<'p>, page: PageId) -> Self {
        Self { pool, frame_ref, page }
    }

    /// The page number.
    pub fn page(&self) -> PageId {
        self.page
    }

    /// The log sequence number of the page's last change.
    pub fn lsn(&self) -> u64 {
        // SAFETY: the page is held shared, so no thread writes it.
        unsafe { page::lsn_at(self.frame_ref.memory) }
    }

    /// The payload, as optimistic readers see it.
    #[inline(always)]
    pub fn payload(&self) -> &Payload {
        // SAFETY: the page stays in its memory while the guard lives, and no thread writes it.
        unsafe { Payload::at(self.frame_ref.memory, self.pool.payload_words) }
    }
}

impl Deref for Shared<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the page stays in its memory while the guard lives, and no thread writes it.
        unsafe { slice::from_raw_parts(self.frame_ref.memory.add(HEADER), self.pool.payload_words * WORD) }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.frame_ref.state.unlock_shared();
    }
}

/// An optimistic read of a page. The thread does not hold the page and writes to no shared memory. A read counts only
/// after [`Optimistic::validate`] has succeeded.
#[derive(Clone, Copy)]
pub struct Optimistic<'p> {
    pool: &'p Pool,
    frame_ref: FrameRef<'p>,
    page: PageId,
    seen: u64,
}

impl<'p> Optimistic<'p> {
    #[inline(always)]
    pub(crate) fn new(pool: &'p Pool, frame_ref: FrameRef<'p>, page: PageId, seen: u64) -> Self {
        Self { pool, frame_ref, page, seen }
    }

    /// The page number.
    #[inline]
    pub fn page(&self) -> PageId {
        self.page
    }

    /// The payload. Other threads may change it meanwhile.
    #[inline(always)]
    pub fn payload(&self) -> &'p Payload {
        // SAFETY: the memory stays mapped as long as the pool lives. Writers store words, as `Payload` does. Storage
        // writes through the kernel, or with `Read::fill`.
        unsafe { Payload::at(self.frame_ref.memory, self.pool.payload_words) }
    }

    /// Copies `N` bytes from offset `at` on. They may be inconsistent until [`Optimistic::validate`] succeeds.
    ///
    /// # Panics
    /// If the range is outside the payload.
    #[inline]
    pub fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut copy = [0; N];
        self.payload().read(at, &mut copy);
        copy
    }

    /// Copies the payload from its start, as many bytes as `to` has. They may be inconsistent until
    /// [`Optimistic::validate`] succeeds.
    ///
    /// # Panics
    /// If the payload has fewer bytes.
    pub fn copy_to(&self, to: &mut [u8]) {
        self.payload().read(0, to);
    }

    /// Checks that everything read since the start is the page's content at one moment. Fails if the page has changed
    /// or left.
    #[inline(always)]
    pub fn validate(&self) -> Result<(), Restart> {
        if self.frame_ref.state.is_unchanged(self.seen) { Ok(()) } else { Err(Restart) }
    }

    /// Takes the page exclusively. Fails if it has changed since the start of the read, or if it is held.
    pub fn upgrade(self) -> Result<Exclusive<'p>, Restart> {
        let before = self.frame_ref.state.try_upgrade(self.seen).ok_or(Restart)?;
        Ok(Exclusive::new(self.pool, self.frame_ref, self.page, before))
    }

    /// Takes the page shared. Fails if it has changed since the start of the read, or if a writer waits for it.
    pub fn share(self) -> Result<Shared<'p>, Restart> {
        if self.frame_ref.state.try_share_since(self.seen) {
            Ok(Shared::new(self.pool, self.frame_ref, self.page))
        } else {
            Err(Restart)
        }
    }
}
