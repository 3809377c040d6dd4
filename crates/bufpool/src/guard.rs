//! What a pinned page is to its user.

use std::ops::{Deref, DerefMut};

use crate::engine::Place;
use crate::error::Restart;
use crate::page::{self, HEADER, PAYLOAD, PageId};
use crate::pool::Pool;

/// A page that only its holder uses. It is dirty from the first change on, and let go when dropped.
///
/// Whoever holds a page keeps it in memory. A thread that already holds pages may wait for another one that a second thread
/// holds, so pages must be taken in an order that cannot end in a circle.
#[must_use = "the page is let go when this is dropped"]
pub struct Exclusive<'p> {
    pool: &'p Pool,
    place: Place<'p>,
    page: PageId,
    before: u64,
    modified: bool,
}

impl<'p> Exclusive<'p> {
    pub(crate) fn new(pool: &'p Pool, place: Place<'p>, page: PageId, before: u64) -> Self {
        Self { pool, place, page, before, modified: false }
    }

    /// Its number.
    pub fn page(&self) -> PageId {
        self.page
    }

    /// The log sequence number of its last change.
    pub fn lsn(&self) -> u64 {
        // SAFETY: the page is locked, so nobody else writes it.
        unsafe { page::lsn_at(self.place.memory) }
    }

    /// Says which record of the log tells of the change: the page is not written before that record is durable.
    pub fn set_lsn(&mut self, lsn: u64) {
        self.modified = true;
        // SAFETY: the page is locked by this guard.
        unsafe { page::set_lsn_at(self.place.memory, lsn) };
    }

    /// Makes it an empty page of zeros.
    pub(crate) fn clear(&mut self) {
        self.fill(0);
        self.set_lsn(0);
    }

    /// Writes to its memory without a change that counts.
    pub(crate) fn touch(&mut self) {
        // SAFETY: in the page, which is locked by this guard.
        unsafe { self.place.memory.add(HEADER).write_volatile(0) };
    }

    /// Lets go of a page that nobody needs any more. With a log it is written all the same if it is dirty: a checkpoint
    /// may come between the records about it and the one that frees it, and after a crash the latter may be gone.
    pub(crate) fn discard(self) {
        let word = self.place.word;
        match self.pool.log {
            Some(_) if self.modified => word.unlock_modified(self.before, self.pool.layout),
            Some(_) => word.unlock_freed(self.before, self.pool.layout),
            None => word.unlock_freed_clean(self.before, self.pool.layout),
        }
        std::mem::forget(self);
    }

    /// Its payload, for those who compute addresses in it. Reading and writing through it is for as long as this lives;
    /// the page is dirty from now on.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.modified = true;
        self.place.memory.wrapping_add(HEADER)
    }
}

impl Deref for Exclusive<'_> {
    type Target = [u8; PAYLOAD];

    fn deref(&self) -> &[u8; PAYLOAD] {
        // SAFETY: the page is in its memory and stays there, and nobody else writes it while this lives.
        unsafe { &*self.place.memory.add(HEADER).cast() }
    }
}

impl DerefMut for Exclusive<'_> {
    fn deref_mut(&mut self) -> &mut [u8; PAYLOAD] {
        self.modified = true;
        // SAFETY: as above; those who read it optimistically make copies and do not believe them.
        unsafe { &mut *self.place.memory.add(HEADER).cast() }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if self.modified {
            self.place.word.unlock_modified(self.before, self.pool.layout);
        } else {
            self.place.word.unlock_unchanged();
        }
    }
}

/// A page that nobody changes meanwhile.
#[must_use = "the page is let go when this is dropped"]
pub struct Shared<'p> {
    place: Place<'p>,
    page: PageId,
}

impl<'p> Shared<'p> {
    pub(crate) fn new(place: Place<'p>, page: PageId) -> Self {
        Self { place, page }
    }

    /// Its number.
    pub fn page(&self) -> PageId {
        self.page
    }

    /// The log sequence number of its last change.
    pub fn lsn(&self) -> u64 {
        // SAFETY: the page is held shared, so nobody writes it.
        unsafe { page::lsn_at(self.place.memory) }
    }
}

impl Deref for Shared<'_> {
    type Target = [u8; PAYLOAD];

    fn deref(&self) -> &[u8; PAYLOAD] {
        // SAFETY: the page is in its memory and stays there, and nobody writes it while this lives.
        unsafe { &*self.place.memory.add(HEADER).cast() }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.place.word.unlock_shared();
    }
}

/// A page that is read without holding it: nothing is written to shared memory, and nothing that was read is to be
/// believed before [`Optimistic::validate`] says so.
///
/// What is read may be of different moments, zeros, or of another page. It must be read by loads that may race (volatile
/// or atomic ones, or [`Optimistic::read`]), and every offset found in it must be checked before it is used. Reading never
/// faults as long as it stays inside the payload.
#[derive(Clone, Copy)]
pub struct Optimistic<'p> {
    pool: &'p Pool,
    place: Place<'p>,
    page: PageId,
    seen: u64,
}

impl<'p> Optimistic<'p> {
    #[inline(always)]
    pub(crate) fn new(pool: &'p Pool, place: Place<'p>, page: PageId, seen: u64) -> Self {
        Self { pool, place, page, seen }
    }

    /// Its number.
    #[inline]
    pub fn page(&self) -> PageId {
        self.page
    }

    /// Its payload, of [`PAYLOAD`] bytes.
    #[inline(always)]
    pub fn as_ptr(&self) -> *const u8 {
        self.place.memory.wrapping_add(HEADER)
    }

    /// Copies some bytes, not to be believed yet.
    ///
    /// # Panics
    /// If they are not all in the payload.
    #[inline]
    pub fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        assert!(at <= PAYLOAD && N <= PAYLOAD - at, "inside the payload");
        // SAFETY: in the page, whose memory is mapped as long as the pool lives. That others may write it is why the
        // copy is volatile, and not believed.
        unsafe { self.as_ptr().add(at).cast::<[u8; N]>().read_volatile() }
    }

    /// Copies the whole payload, not to be believed yet.
    pub fn copy_to(&self, to: &mut [u8; PAYLOAD]) {
        for (index, chunk) in to.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&self.read::<8>(index * 8));
        }
    }

    /// Whether everything that was read since this was made is the page's content, at one moment.
    #[inline(always)]
    pub fn validate(&self) -> Result<(), Restart> {
        if self.place.word.is_unchanged(self.seen) { Ok(()) } else { Err(Restart) }
    }

    /// Holds the page exclusively, if it is as it was read.
    pub fn upgrade(self) -> Result<Exclusive<'p>, Restart> {
        let before = self.place.word.try_upgrade(self.seen).ok_or(Restart)?;
        Ok(Exclusive::new(self.pool, self.place, self.page, before))
    }

    /// Holds the page shared, if it is as it was read.
    pub fn share(self) -> Result<Shared<'p>, Restart> {
        if self.place.word.try_share_since(self.seen) {
            Ok(Shared::new(self.place, self.page))
        } else {
            Err(Restart)
        }
    }
}

const _: () = assert!(PAYLOAD.is_multiple_of(8));
