//! Which pages are in use.
//!
//! In memory, free pages are a set, from which the lowest is given out first. In storage they are a list in free pages
//! themselves, written by [`close`](crate::Pool::close) and believed only when nothing was written after it. After a crash
//! no page is known to be free: pages that were in use cannot be given out twice, and the user says which ones are reachable
//! ([`reclaim`](crate::Pool::reclaim)).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::buffer::{Buffer, TOGETHER};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::meta::FIRST;
use crate::page::{self, HEADER, Image, PAYLOAD, PageId};
use crate::storage::{Storage, Write, read};

/// How many pages a file grows by at least.
const CHUNK: u64 = 4096;
/// Free pages in one page of the list, behind its successor and its count.
const ENTRIES: usize = PAYLOAD / 8 - 2;

/// The pages of a pool.
pub(crate) struct Space {
    state: Mutex<State>,
    /// The same as in the state, for those who only look.
    end: AtomicU64,
}

pub(crate) struct State {
    pub free: BTreeSet<u64>,
    /// Pages from here on were never allocated.
    end: u64,
    /// Pages for which storage has room.
    room: u64,
    limit: u64,
}

impl Space {
    /// `limit` is how many pages there may ever be.
    pub fn new(free: BTreeSet<u64>, end: u64, room: u64, limit: u64) -> Self {
        Self { state: Mutex::new(State { free, end, room, limit }), end: AtomicU64::new(end) }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages from here on were never allocated.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// A page that is not in use.
    pub fn allocate(&self, home: &Home) -> Result<PageId> {
        let mut state = self.lock();
        if let Some(page) = state.free.pop_first() {
            return Ok(PageId(page));
        }
        let page = state.end;
        if page >= state.limit {
            return Err(Error::Full { pages: state.limit - FIRST });
        }
        state.grow(page + 1, home)?;
        state.end = page + 1;
        self.end.store(page + 1, Ordering::Release);
        Ok(PageId(page))
    }

    /// Takes a certain page into use, and all up to it.
    pub fn allocate_at(&self, page: PageId, home: &Home) -> Result<()> {
        let mut state = self.lock();
        if page.0 < FIRST || page.0 >= state.limit {
            return Err(Error::NoSuchPage { page });
        }
        state.free.remove(&page.0);
        if page.0 >= state.end {
            state.grow(page.0 + 1, home)?;
            state.end = page.0 + 1;
            self.end.store(state.end, Ordering::Release);
        }
        Ok(())
    }

    /// The page is not in use any more. False if it was not.
    pub fn free(&self, page: PageId) -> bool {
        self.lock().free.insert(page.0)
    }
}

impl State {
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Makes room for at least so many pages. How many there are is durable before one of them is given out: after a crash,
    /// none is given out twice. The record has the roots as they are now, which may be of pages that were not written: so
    /// it says that the pool is open.
    fn grow(&mut self, pages: u64, home: &Home) -> Result<()> {
        if pages <= self.room {
            return Ok(());
        }
        let mut room = (pages + CHUNK.max(pages / 8)).min(self.limit);
        if home.storage.grow(self.room..room).is_err() {
            // The last piece of a device, or of a quota, may be smaller.
            room = pages;
            home.storage.grow(self.room..room).map_err(Error::storage("make room for another page"))?;
        }
        let mut meta = home.meta();
        let before = std::mem::replace(&mut meta.room, room);
        meta.open();
        if let Err(error) = home.store(&mut meta) {
            meta.room = before;
            return Err(error);
        }
        self.room = room;
        Ok(())
    }

    /// Writes the list of free pages into the first of them. Returns the first page of it, zero if there is none.
    pub fn save(&self, home: &Home) -> Result<u64> {
        let all: Vec<u64> = self.free.iter().copied().collect();
        let mut buffer = Buffer::new(1);
        let mut next = 0;
        // As many pages as the list takes are in it like the others: they are free.
        for (page, entries) in all.iter().zip(all.chunks(ENTRIES)) {
            let image = &mut buffer[0];
            image.fill(0);
            let words = [next, entries.len() as u64].into_iter().chain(entries.iter().copied());
            for (to, word) in image[HEADER..].chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            page::seal(image, PageId(*page));
            let mut writes = [Write::new(*page, &buffer)];
            home.storage.write(&mut writes);
            let [write] = writes;
            write.result.map_err(|source| Error::Write { page: PageId(*page), source })?;
            home.unsynced().forget(*page);
            next = *page;
        }
        Ok(next)
    }
}

/// Reads the list that [`State::save`] wrote.
pub(crate) fn load(storage: &dyn Storage, first: u64, end: u64) -> Result<BTreeSet<u64>> {
    let mut free = BTreeSet::new();
    let mut buffer = Buffer::new(1);
    let mut next = first;
    while next != 0 {
        let page = PageId(next);
        let sense = || Error::Format(format!("page {page} of the list of free pages makes no sense"));
        if !(FIRST..end).contains(&next) {
            return Err(sense());
        }
        read(storage, next, &mut buffer[..1])?;
        page::verify(&buffer[0], page).map_err(|damage| Error::Damaged { page, damage })?;
        let mut words = words(&buffer[0]);
        next = words.next().unwrap_or(0);
        let count = words.next().unwrap_or(0);
        if !(1..=ENTRIES as u64).contains(&count) {
            return Err(sense());
        }
        let before = free.len();
        free.extend(words.take(count as usize).filter(|page| (FIRST..end).contains(page)));
        // No page is in it twice, so a circle ends here, too.
        if free.len() != before + count as usize {
            return Err(sense());
        }
    }
    Ok(free)
}

fn words(image: &Image) -> impl Iterator<Item = u64> {
    image[HEADER..].chunks_exact(8).map(|word| u64::from_le_bytes(*word.first_chunk().expect("8 bytes")))
}

/// Where pages end that were ever written: behind the last one that is not zeros.
///
/// Pages before it may be zeros, so there is no halving here: storage tells from where on it has nothing, and the rest,
/// which is short then, is read from its end.
pub(crate) fn find_end(storage: &dyn Storage, at_least: u64, room: u64) -> Result<u64> {
    let mut buffer = Buffer::new(TOGETHER);
    let mut end = storage.written_end(at_least..room.max(at_least)).clamp(at_least, room.max(at_least));
    while end > at_least {
        let first = end.saturating_sub(TOGETHER as u64).max(at_least);
        read(storage, first, &mut buffer[..(end - first) as usize])?;
        let is_written = |image: &Image| image.iter().any(|byte| *byte != 0);
        if let Some(last) = buffer[..(end - first) as usize].iter().rposition(is_written) {
            return Ok(first + last as u64 + 1);
        }
        end = first;
    }
    Ok(at_least)
}
