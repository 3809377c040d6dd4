//! Which pages are in use, and which were never written.
//!
//! In memory, free pages are a set, from which the lowest is given out first. In storage they are a list in free pages
//! themselves. [`close`](crate::Pool::close) writes it, and the pool reads it only if nothing was written after that. After
//! a crash the pool knows no free page. It cannot give out a page twice, and the user says which pages are reachable
//! ([`reclaim`](crate::Pool::reclaim)).
//!
//! # Why the list may overwrite pages that the log knows
//!
//! After a later crash, replay may begin before the close. It then finds records about a page X of the list. Redo must skip all
//! of them, because X has no content.
//!
//! Let L be the greatest number that was put into any page until the close (`last_lsn`). Pages of the list carry L.
//!
//! 1. *Records about X from before the close are skipped.* Each of them put its number into X or into the image that X
//!    was, so it is at most L.
//! 2. *X is not in use in any state that replay can end in before the page is used again.* The record after which nothing
//!    refers to X was in some page before X was freed, so its number is at most L. The close makes the log durable up to
//!    L before it overwrites X. So every replay includes that record.
//! 3. *Records about X from after the close are applied.* Their numbers are greater than L, because numbers rise, also
//!    across a crash: L is durable. The first of them has the whole page (rule 4 of [`Log`](crate::Log)), so the list is not part
//!    of the result.
//! 4. *A close that fails does not change this.* Some pages of the list have L, the others have their old content and number, and
//!    1 to 3 hold for both.
//! 5. *A crash in the middle of the close tears X at worst.* Pages of the list are written like other pages. With
//!    double writes, X is restored from a copy: of the list, with L, or of X's last content. Without them, the log has
//!    images after each sync, and the first record about X that is replayed is one.
//! 6. *A page of the list that is allocated again and not written* still carries L in storage, as in 1 to 3. If it is
//!    written without a record, it carries the greatest number at its allocation, which is at least L.
//! 7. *A pool that is opened without a log* keeps L: the superblock has it.
//!
//! The same holds for pages that were never written, which the close after a crash fills with empty pages of number L.
//!
//! The allocator's lock comes after a page's lock, and before those of the superblock and of storage (`page_store`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::buffer::{Buffer, TOGETHER};
use crate::durability::page_store::PageStore;
use crate::durability::superblock::FIRST;
use crate::error::{Error, Result};
use crate::images::Images;
use crate::page::{self, HEADER, Image, PageId};
use crate::page_size::PageSize;
use crate::protocol::counted_mutex::CountedMutex;
use crate::storage::{Storage, read};

/// Minimum number of bytes by which a file grows.
const CHUNK: u64 = 16 << 20;

/// Free pages in one page of the list, behind its successor and its count.
const fn entries(size: PageSize) -> usize {
    size.payload() / 8 - 2
}

/// The pages of a pool.
pub(crate) struct PageAllocator {
    state: CountedMutex<State>,
    /// The same as in the state, for threads that do not take the lock.
    end: AtomicU64,
}

pub(crate) struct State {
    pub free: BTreeSet<u64>,
    /// Pages that may never have been written though they are not free.
    unwritten: Range<u64>,
    /// Pages from here on were never allocated.
    end: u64,
    /// Pages for which storage has room.
    room: u64,
    limit: u64,
}

impl PageAllocator {
    /// `limit` is the maximum number of pages.
    pub fn new(free: BTreeSet<u64>, unwritten: Range<u64>, end: u64, room: u64, limit: u64) -> Self {
        Self {
            state: CountedMutex::new(State { free, unwritten, end, room, limit }),
            end: AtomicU64::new(end),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Number of times that a thread found the allocator locked.
    pub fn waits(&self) -> u64 {
        self.state.waits()
    }

    /// Pages from here on were never allocated.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Whether zeros in storage are this page, because nothing else was ever written there.
    pub fn may_be_unwritten(&self, page: PageId) -> bool {
        let state = self.lock();
        state.free.contains(&page.0) || state.unwritten.contains(&page.0)
    }

    /// Every page below this one that is in use is dirty or was written.
    pub fn written_up_to(&self) -> u64 {
        let state = self.lock();
        if state.unwritten.is_empty() { state.end } else { state.unwritten.start }
    }

    /// Allocates a page that is not in use.
    pub fn allocate(&self, store: &PageStore) -> Result<PageId> {
        let mut state = self.lock();
        if let Some(page) = state.free.pop_first() {
            return Ok(PageId(page));
        }
        let page = state.end;
        if page >= state.limit {
            return Err(Error::Full { pages: state.limit - FIRST });
        }
        state.grow(page + 1, store)?;
        state.end = page + 1;
        self.end.store(page + 1, Ordering::Release);
        Ok(PageId(page))
    }

    /// Ensures that `pages` pages can be allocated without a growth of the storage, as long as no other thread allocates.
    pub fn reserve(&self, pages: u64, store: &PageStore) -> Result<()> {
        let mut state = self.lock();
        let more = pages.saturating_sub(state.free.len() as u64);
        if more > state.limit - state.end {
            return Err(Error::Full { pages: state.limit - FIRST });
        }
        let room = state.end + more;
        state.grow(room, store)
    }

    /// Allocates a certain page, and all pages up to it.
    pub fn allocate_at(&self, page: PageId, store: &PageStore) -> Result<()> {
        let mut state = self.lock();
        if page.0 < FIRST || page.0 >= state.limit {
            return Err(Error::NoSuchPage { page });
        }
        state.free.remove(&page.0);
        if page.0 >= state.end {
            state.grow(page.0 + 1, store)?;
            // None of the new pages was written, including the requested one.
            let empty = state.unwritten.is_empty();
            let first = if empty { state.end } else { state.unwritten.start };
            state.unwritten = first..page.0 + 1;
            state.end = page.0 + 1;
            self.end.store(state.end, Ordering::Release);
        }
        Ok(())
    }

    /// Frees a page. Returns false if it was not in use.
    pub fn free(&self, page: PageId) -> bool {
        self.lock().free.insert(page.0)
    }
}

impl State {
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Makes room for at least `pages` pages. The new number is durable before one of them is allocated, so that a crash cannot
    /// make the pool allocate a page twice. The record contains the current roots, which may refer to pages that were not
    /// written. So it says that the pool is open.
    fn grow(&mut self, pages: u64, store: &PageStore) -> Result<()> {
        if pages <= self.room {
            return Ok(());
        }
        let size = store.size;
        let blocks = |pages: Range<u64>| size.block(pages.start)..size.block(pages.end);
        let mut room = (pages + (CHUNK >> size.shift()).max(pages / 8)).min(self.limit);
        if store.storage.grow(blocks(self.room..room)).is_err() {
            // The last piece of a device, or of a quota, may be smaller.
            room = pages;
            store
                .storage
                .grow(blocks(self.room..room))
                .map_err(Error::storage("make room for another page"))?;
        }
        let mut superblock = store.superblock();
        let before = std::mem::replace(&mut superblock.room, room);
        superblock.open();
        if let Err(error) = store.store(&mut superblock) {
            superblock.room = before;
            return Err(error);
        }
        self.room = room;
        Ok(())
    }

    /// Writes the list of free pages into the first of them, with a log sequence number. Returns its first page, or zero if no
    /// page is free.
    pub fn save(&self, store: &PageStore, lsn: u64) -> Result<u64> {
        let all: Vec<u64> = self.free.iter().copied().collect();
        // The pages that store the list are in it like the others, because they are free.
        let list: Vec<(u64, &[u64])> = all.iter().copied().zip(all.chunks(entries(store.size))).collect();
        let mut buffer = Buffer::new(store.size, TOGETHER);
        let mut next = 0;
        for part in list.chunks(TOGETHER) {
            for ((page, entries), image) in part.iter().zip(buffer.images_mut(0..part.len())) {
                image.fill(0);
                let words = [next, entries.len() as u64].into_iter().chain(entries.iter().copied());
                for (to, word) in image[HEADER..].chunks_exact_mut(8).zip(words) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                page::set_lsn(image, lsn);
                page::seal(image, PageId(*page));
                next = *page;
            }
            let pages: Vec<PageId> = part.iter().map(|(page, _)| PageId(*page)).collect();
            write_pages(store, &pages, buffer.images(0..part.len()))?;
            // If an fsync fails, the close does too, and the next one writes the list again.
            pages.iter().for_each(|page| store.pages_since_sync().forget(page.0));
        }
        Ok(next)
    }

    /// Writes empty pages where pages were never written, with a log sequence number. From then on, zeros are damage.
    pub fn fill_unwritten(&mut self, store: &PageStore, lsn: u64) -> Result<()> {
        let mut buffer = Buffer::new(store.size, TOGETHER);
        while !self.unwritten.is_empty() {
            let first = self.unwritten.start;
            let count = ((self.unwritten.end - first) as usize).min(TOGETHER);
            read(&*store.storage, first, buffer.images_mut(0..count))?;
            let images = buffer.images(0..count);
            let missing = (first..).zip(images.iter()).filter(|(_, image)| page::is_unwritten(image));
            let pages: Vec<PageId> = missing.map(|(page, _)| PageId(page)).collect();
            for (page, image) in pages.iter().zip(buffer.images_mut(0..pages.len())) {
                image.fill(0);
                // Storage accepted this page, but lost it.
                if !store.pages_since_sync().is_last(*page, image) {
                    return Err(Error::Lost { page: *page });
                }
                page::set_lsn(image, lsn);
                page::seal(image, *page);
            }
            if !pages.is_empty() {
                write_pages(store, &pages, buffer.images(0..pages.len()))?;
            }
            self.unwritten.start = first + count as u64;
        }
        Ok(())
    }
}

/// Writes pages like those of the user. The caller keeps other threads from writing.
fn write_pages(store: &PageStore, pages: &[PageId], images: Images<'_>) -> Result<()> {
    for write in store.write(pages, images) {
        let page = PageId(write.page());
        write.result.map_err(|source| Error::Write { page, source })?;
    }
    Ok(())
}

/// Reads the list that [`State::save`] wrote.
pub(crate) fn load(storage: &dyn Storage, size: PageSize, first: u64, end: u64) -> Result<BTreeSet<u64>> {
    let mut free = BTreeSet::new();
    let mut buffer = Buffer::new(size, 1);
    let mut next = first;
    while next != 0 {
        let page = PageId(next);
        let sense = || Error::Format(format!("page {page} of the list of free pages makes no sense"));
        if !(FIRST..end).contains(&next) {
            return Err(sense());
        }
        read(storage, next, buffer.images_mut(0..1))?;
        page::verify(buffer.image(0), page).map_err(|damage| Error::Damaged { page, damage })?;
        let mut words = words(buffer.image(0));
        next = words.next().unwrap_or(0);
        let count = words.next().unwrap_or(0);
        if !(1..=entries(size) as u64).contains(&count) {
            return Err(sense());
        }
        let before = free.len();
        free.extend(words.take(count as usize).filter(|page| (FIRST..end).contains(page)));
        // No page is in it twice, so a cycle ends here too.
        if free.len() != before + count as usize {
            return Err(sense());
        }
    }
    Ok(free)
}

fn words(image: &Image) -> impl Iterator<Item = u64> {
    image[HEADER..].chunks_exact(8).map(|word| u64::from_le_bytes(*word.first_chunk().expect("8 bytes")))
}

/// Finds the end of the pages that were ever written: the page after the last one that is not zeros.
///
/// Pages before it may be zeros, so a binary search cannot find it. Storage tells where its data ends. The rest, which is short
/// then, is read from its end.
pub(crate) fn find_end(storage: &dyn Storage, size: PageSize, at_least: u64, room: u64) -> Result<u64> {
    let mut buffer = Buffer::new(size, TOGETHER);
    let room = room.max(at_least);
    let written = storage.written_end(size.block(at_least)..size.block(room));
    let mut end = size.page_from(written).clamp(at_least, room);
    while end > at_least {
        let first = end.saturating_sub(TOGETHER as u64).max(at_least);
        let count = (end - first) as usize;
        read(storage, first, buffer.images_mut(0..count))?;
        let is_written = |index: &usize| buffer.image(*index).iter().any(|byte| *byte != 0);
        if let Some(last) = (0..count).rev().find(is_written) {
            return Ok(first + last as u64 + 1);
        }
        end = first;
    }
    Ok(at_least)
}
