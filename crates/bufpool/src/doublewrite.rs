//! Pages that a crash tears in the middle of their writing.
//!
//! A page is more than a disk promises to write at once. Torn pages are noticed when they are read; but a log of changes
//! cannot repair one, for it has no whole page to begin with. So a batch of pages is first written to an area of its own
//! and made durable; then the pages are written in their places. A crash tears one or the other.
//!
//! There are two regions, used in turn. The fsync between a batch's copies and its places also makes the places of the
//! batch before durable, so that the region of the batch before may be written again by the batch after: one fsync for
//! each batch.
//!
//! A page that could not be written in its place may be torn there, and its copy is the only whole one. It is kept, and
//! written before the next batch begins; as long as that fails, so do all batches. The same goes for the last batch when an
//! fsync fails: its places may not have been written, and its region is about to be.
//!
//! Where its lock is in their order, `home` says.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::buffer::{Buffer, TOGETHER};
use crate::error::{Error, Result};
use crate::meta::FIRST;
use crate::page::{self, HEADER, Image, PageId};
use crate::storage::{Storage, Write, read};

const REGIONS: u64 = 2;
/// A header, and a copy for each page of a batch.
const REGION: u64 = 1 + TOGETHER as u64;
/// Behind the pool's record.
const AREA: u64 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"BEDTWICE");

const _: () = assert!(AREA + REGIONS * REGION <= FIRST);

/// What protects pages from being torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TornPages {
    /// The pool does: every page is written twice, with an fsync for each batch. The default of pools with a log.
    DoubleWrite,
    /// Somebody else does: a disk that writes 4 KiB at once, a file system that never writes in place, or a log that has the
    /// whole page when it changes first after a [`sync`](crate::Pool::sync). Torn pages are noticed when they are read.
    /// The default of pools without a log, which do not survive a crash.
    Detect,
}

/// The area's state.
pub(crate) struct DoubleWrite {
    state: Mutex<State>,
}

struct State {
    /// Of the next batch.
    sequence: u64,
    header: Buffer,
    /// Whole copies of pages that may be torn in their places.
    torn: BTreeMap<u64, Box<Image>>,
    /// The batch whose places no fsync has made durable yet.
    last: Buffer,
    last_pages: Vec<PageId>,
}

fn region(sequence: u64) -> u64 {
    AREA + sequence % REGIONS * REGION
}

impl DoubleWrite {
    pub fn new(sequence: u64) -> Self {
        let state = State {
            sequence,
            header: Buffer::new(1),
            torn: BTreeMap::new(),
            last: Buffer::new(TOGETHER),
            last_pages: Vec::new(),
        };
        Self { state: Mutex::new(state) }
    }

    /// Writes a batch: copies, `sync`, and places. Each page's images are in the order of `pages`.
    pub fn write(
        &self,
        storage: &dyn Storage,
        sync: impl FnOnce() -> Result<()>,
        pages: &[PageId],
        images: &[Image],
        places: &mut [Write<'_>],
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = state.prepare(storage, sync, pages, images) {
            for place in places {
                place.result = Err(io::Error::new(error.kind(), error.to_string()));
            }
            return;
        }
        state.sequence += 1;
        state.last[..images.len()].copy_from_slice(images);
        state.last_pages = pages.to_vec();
        storage.write(places);
        for place in places.iter().filter(|place| place.result.is_err()) {
            for (page, image) in (place.page()..).zip(place.images()) {
                state.torn.insert(page, Box::new(*image));
            }
        }
    }

    /// An fsync has failed.
    pub fn doubt(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).doubt();
    }

    /// The copy of a page that may be torn in its place.
    pub fn copy(&self, page: PageId) -> Option<Box<Image>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).torn.get(&page.0).cloned()
    }
}

impl State {
    /// Everything before the first place is written.
    fn prepare(
        &mut self,
        storage: &dyn Storage,
        sync: impl FnOnce() -> Result<()>,
        pages: &[PageId],
        images: &[Image],
    ) -> io::Result<()> {
        self.mend(storage)?;
        let first = region(self.sequence);
        let header = &mut self.header[0];
        header.fill(0);
        let words = [MAGIC, self.sequence, pages.len() as u64].into_iter().chain(pages.iter().map(|p| p.0));
        for (to, word) in header[HEADER..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        page::seal(header, PageId(first));
        let mut copies = [Write::new(first, &self.header), Write::new(first + 1, images)];
        storage.write(&mut copies);
        for copy in copies {
            copy.result?;
        }
        sync().map_err(|error| {
            self.doubt();
            match error {
                Error::Storage { source, .. } => source,
                error => io::Error::other(error),
            }
        })
    }

    /// The places of the last batch may be as they were before.
    fn doubt(&mut self) {
        for (page, image) in self.last_pages.iter().zip(self.last.iter()) {
            self.torn.entry(page.0).or_insert_with(|| Box::new(*image));
        }
    }

    /// Writes what may be torn again.
    fn mend(&mut self, storage: &dyn Storage) -> io::Result<()> {
        let mut buffer = Buffer::new(1);
        while let Some((page, image)) = self.torn.first_key_value() {
            let page = *page;
            buffer[0] = **image;
            let mut writes = [Write::new(page, &buffer)];
            storage.write(&mut writes);
            let [write] = writes;
            write.result?;
            self.torn.remove(&page);
        }
        Ok(())
    }
}

/// What a region has copies of.
struct Found {
    sequence: u64,
    first: u64,
    pages: Vec<PageId>,
}

fn find(storage: &dyn Storage, buffer: &mut Buffer) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for first in (0..REGIONS).map(region) {
        read(storage, first, &mut buffer[..1])?;
        if page::verify(&buffer[0], PageId(first)).is_err() {
            continue;
        }
        let mut words = buffer[0][HEADER..]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(*word.first_chunk().expect("8")));
        let [magic, sequence, count] = [0; 3].map(|_: u64| words.next().unwrap_or(0));
        // The next one has a number, too.
        if magic == MAGIC && sequence < u64::MAX {
            found.push(Found { sequence, first, pages: words.take(count as usize).map(PageId).collect() });
        }
    }
    found.sort_by_key(|found| found.sequence);
    Ok(found)
}

/// Restores torn pages from their copies, where a crash left some, and returns the sequence number for the next batch and
/// how many pages were restored.
pub(crate) fn restore(storage: &dyn Storage, after_crash: bool) -> Result<(u64, u64)> {
    let mut buffer = Buffer::new(1);
    let found = find(storage, &mut buffer)?;
    let next = found.last().map_or(1, |found| found.sequence + 1);
    let mut copies: BTreeMap<PageId, Box<Image>> = BTreeMap::new();
    for found in found.iter().filter(|_| after_crash) {
        for (at, page) in (found.first + 1..).zip(&found.pages) {
            read(storage, at, &mut buffer[..1])?;
            // When the copies are torn, their places were not touched yet.
            if page::verify(&buffer[0], *page).is_ok() && page::identity(&buffer[0]) == *page {
                copies.insert(*page, Box::new(buffer[0]));
            }
        }
    }
    let mut restored = 0;
    for (page, copy) in copies {
        read(storage, page.0, &mut buffer[..1])?;
        if page::verify(&buffer[0], page).is_err() {
            buffer[0] = *copy;
            let mut writes = [Write::new(page.0, &buffer)];
            storage.write(&mut writes);
            let [write] = writes;
            write.result.map_err(|source| Error::Write { page, source })?;
            restored += 1;
        }
    }
    if restored > 0 {
        storage.sync().map_err(Error::storage("make restored pages durable"))?;
    }
    Ok((next, restored))
}

/// Forgets all copies: pages will be written that have none, and one of these would be older.
pub(crate) fn forget(storage: &dyn Storage) -> Result<()> {
    let mut buffer = Buffer::new(1);
    if find(storage, &mut buffer)?.is_empty() {
        return Ok(());
    }
    buffer[0].fill(0);
    for first in (0..REGIONS).map(region) {
        let mut writes = [Write::new(first, &buffer)];
        storage.write(&mut writes);
        let [write] = writes;
        write.result.map_err(|source| Error::Write { page: PageId(first), source })?;
    }
    storage.sync().map_err(Error::storage("forget copies of pages"))
}
