//! Protects pages from being torn by a crash.
//!
//! A disk does not promise to write a page at once. A checksum detects a torn page, but a log of changes cannot repair one,
//! because redo needs a whole page to begin with. So the pool writes the copies of a batch of pages to a region of the
//! double-write area, and makes them durable. Then it writes the pages in their places. A crash tears the copy or the place,
//! never both.
//!
//! # Regions
//!
//! The area is a ring of regions ([`area`]). Each batch takes a free region. Several batches are in flight at a time, and one
//! fsync makes the copies of all waiting batches durable (`group_fsync`). A region goes through these states:
//!
//! - *free*: no page needs its copies;
//! - *active*: a thread writes its copies, waits for their fsync, and writes the places;
//! - *kept*: the thread has finished, and the places of some *live* copies may not be durable.
//!
//! A copy is live from the time it is durable until one of these is true:
//!
//! 1. The place was written, and an fsync that began later succeeded.
//! 2. A newer copy of the page is durable in another region.
//!
//! A kept region without live copies is free.
//!
//! **Invariant: a place that a crash can tear has a whole copy in storage, and no copy of that page has a higher sequence
//! number except a copy of newer content.** Proof: A thread writes a place only after an fsync that began after the copy was
//! written has succeeded, and no fsync failed in between. From then on the copy is live. Nobody writes to a region that has
//! live copies. The copy stops being live by rule 1, and then the place is durable, so a crash cannot tear it; or by
//! rule 2, and then the newer copy takes its role. Sequence numbers grow, and batches of the same page do not overlap,
//! because a frame's `writing` flag admits one. So a higher number means newer content. The newer copy may belong to a batch that
//! never wrote its place. Using it is still correct, because the log was durable before the copy was written.
//!
//! After a crash, [`restore()`] therefore uses the whole copy with the highest number, where a place is torn. The header
//! has the checksum of each copy, so an old copy under a new header is not used.
//!
//! # Failures
//!
//! A page that cannot be written in its place is *unplaced*. Its copy moves to a region for a single page, so that the
//! batch's region becomes free. There are [`MOST_BAD_PAGES`] of those regions. One more unplaced page makes its batch's region
//! stay kept. The pool continues while at least one batch region is not kept for this reason. Without any, batches fail with an
//! error that says so, until a place can be written again.
//!
//! After a failed fsync, the kernel may have dropped any write since the last success. So each live copy of the kept regions
//! makes its page unplaced. A batch whose fsync failed does not write its places, and its pages stay dirty.
//!
//! Unplaced pages are written again by [`DoubleWrite::retry`]: at each checkpoint, and when a batch finds no free region.
//! A newer batch of the page replaces the unplaced copy.
//!
//! # Lock
//!
//! The lock protects the states of regions, and is not held during I/O. It is a leaf, but a thread holds it when it takes
//! no other. `page_store` says where the fsync's lock is. A retry and a batch of the same page exclude each other: a retry
//! skips pages of active regions, and a batch waits while one of its pages is retried.

mod area;
mod batch;
mod restore;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) use restore::{Restored, forget, restore};

pub(crate) use batch::Batch;

use crate::buffer::Buffer;
use crate::error::{Error, Result, same_io_error};
use crate::images::Images;
use crate::page::{Image, PageId};
use crate::page_size::PageSize;
use crate::storage::Storage;
use area::{BATCHES, MOST_BAD_PAGES};
use state::State;

/// The protection of pages from being torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TornPages {
    /// The pool writes every page twice, with an fsync for each group of batches. This is the default of pools with a log.
    DoubleWrite,
    /// The pages are protected outside the pool: by a disk that writes a page atomically, by a file system that never writes in
    /// place, or by a log that has the whole page at its first change after a [`sync`](crate::Pool::sync). The pool detects torn
    /// pages when it reads them. This is the default of pools without a log, which do not survive a crash.
    Detect,
}

/// The double-write area.
pub(crate) struct DoubleWrite {
    state: Mutex<State>,
    /// A region has become kept or free, or a retry has ended.
    changed: Condvar,
}

/// The regions that an fsync covers, each with its number of changes.
pub(crate) struct Covered(Vec<(usize, u64)>);

impl DoubleWrite {
    pub fn new(restored: Restored, size: PageSize) -> Self {
        Self { state: Mutex::new(State::new(restored, size)), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the copies of a batch durable. The caller then writes the places and calls [`Batch::end_places`]. The images are in the
    /// order of `pages`.
    pub fn begin(
        &self,
        storage: &dyn Storage,
        fsync: impl Fn() -> Result<()>,
        pages: &[PageId],
        images: Images<'_>,
    ) -> io::Result<Batch<'_>> {
        let mut batch = self.write_copies(storage, &fsync, pages, images)?;
        batch.begin_places();
        Ok(batch)
    }

    /// Makes the copies of several batches durable with one fsync, as [`DoubleWrite::begin`] does for one.
    ///
    /// It begins as many batches as have free regions, from the first one on, and returns a result for each of those. With
    /// `may_wait`, it begins at least one. A thread that has batches in flight must not wait: two threads that hold regions could
    /// wait for each other's.
    pub fn begin_group(
        &self,
        storage: &dyn Storage,
        fsync: impl Fn() -> Result<()>,
        group: &[(&[PageId], Images<'_>)],
        may_wait: bool,
    ) -> Vec<io::Result<Batch<'_>>> {
        if let ([(pages, images)], true) = (group, may_wait) {
            return vec![self.begin(storage, fsync, pages, *images)];
        }
        let mut begun = Vec::new();
        for (pages, images) in group {
            match self.write_copies_at_once(storage, pages, *images) {
                Some(result) => begun.push(result),
                None if begun.is_empty() && may_wait => {
                    return vec![self.begin(storage, fsync, pages, *images)];
                }
                None => break,
            }
        }
        if begun.iter().any(io::Result::is_ok) {
            let synced = fsync().map_err(source);
            for result in &mut begun {
                let Ok(batch) = result else { continue };
                let durable = match &synced {
                    Err(error) => Err(same_io_error(error)),
                    // An earlier fsync that failed meanwhile may have dropped the copies.
                    Ok(()) if batch.is_unharmed() => Ok(()),
                    Ok(()) => batch.write_copies(storage, &fsync).map_err(batch::Failed::into_io_error),
                };
                match durable {
                    Ok(()) => batch.begin_places(),
                    Err(error) => *result = Err(error),
                }
            }
        }
        begun
    }

    /// Number of batches that can have a region without waiting.
    pub fn free_regions(&self) -> usize {
        self.state().count_free(0..BATCHES)
    }

    /// Writes the copies of a batch, which the next fsync makes durable. Returns none if no region is free, or if one of the
    /// pages is being written in its place.
    fn write_copies_at_once(
        &self,
        storage: &dyn Storage,
        pages: &[PageId],
        images: Images<'_>,
    ) -> Option<io::Result<Batch<'_>>> {
        let mut failure = None;
        for _ in 0..=BATCHES {
            let mut state = self.state();
            let free = state.find_free(0..BATCHES);
            let region = free.filter(|_| !pages.iter().any(|page| state.retried.contains(page)));
            let Some(region) = region else { break };
            let mut batch = Batch::new(self, &mut state, region, pages);
            drop(state);
            batch.fill(images);
            match batch.write_unsynced(storage) {
                Ok(()) => return Some(Ok(batch)),
                Err(error) => failure = Some(Err(error)),
            }
        }
        failure
    }

    /// Makes the copies of a batch durable. A region that cannot be written costs one attempt: the next is another region.
    fn write_copies(
        &self,
        storage: &dyn Storage,
        fsync: &impl Fn() -> Result<()>,
        pages: &[PageId],
        images: Images<'_>,
    ) -> io::Result<Batch<'_>> {
        let mut attempts = BATCHES;
        loop {
            let mut batch = self.take_region(storage, fsync, pages)?;
            batch.fill(images);
            attempts -= 1;
            match batch.write_copies(storage, fsync) {
                Ok(()) => return Ok(batch),
                Err(batch::Failed::Copies(_)) if attempts > 0 => {}
                Err(batch::Failed::Copies(error) | batch::Failed::Fsync(error)) => return Err(error),
            }
        }
    }

    /// Waits for a free region for these pages.
    fn take_region(
        &self,
        storage: &dyn Storage,
        fsync: &impl Fn() -> Result<()>,
        pages: &[PageId],
    ) -> io::Result<Batch<'_>> {
        let mut state = self.state();
        loop {
            if pages.iter().any(|page| state.retried.contains(page)) {
                state = self.wait(state);
            } else if let Some(region) = state.find_free(0..BATCHES) {
                return Ok(Batch::new(self, &mut state, region, pages));
            } else if state.fsync_frees_a_batch_region() {
                drop(state);
                fsync().map_err(source)?;
                state = self.state();
            } else if !state.retried.is_empty() || state.has_active_batch() {
                state = self.wait(state);
            } else {
                drop(state);
                if let (0, Some((page, error))) = self.retry(storage) {
                    return Err(io::Error::other(format!(
                        "more than {MOST_BAD_PAGES} pages cannot be written in their places, page {page} among them ({error}), \
                         and there is no room for more copies: repair or replace the disk"
                    )));
                }
                state = self.state();
            }
        }
    }

    /// Writes unplaced pages in their places. Returns how many could be written, and the first page that could not.
    pub fn retry(&self, storage: &dyn Storage) -> (usize, Option<(PageId, io::Error)>) {
        let pages: Vec<PageId> = self.state().unplaced.keys().copied().collect();
        let (mut placed, mut first_error) = (0, None);
        if pages.is_empty() {
            return (placed, first_error);
        }
        let mut buffer = Buffer::new(self.state().size, 1);
        for page in pages {
            let Some((region, failures)) = self.state().begin_retry(page, buffer.image_mut(0)) else {
                continue;
            };
            let retry = Retry { area: self, page };
            let result = area::write(storage, page.0, buffer.all());
            match result {
                Ok(()) => {
                    placed += 1;
                    self.state().placed_again(page, region, failures);
                }
                Err(error) => first_error = first_error.or(Some((page, error))),
            }
            drop(retry);
        }
        (placed, first_error)
    }

    /// The last copy of a page whose place may not be durable.
    pub fn copy(&self, page: PageId) -> Option<Box<Image>> {
        let state = self.state();
        let region = state.newest_copy(page)?;
        state.image(region, page).map(Box::from)
    }

    /// Records that an fsync begins. At most one runs at a time.
    pub fn fsync_begins(&self) -> Covered {
        Covered(self.state().kept().map(|(index, region)| (index, region.changes)).collect())
    }

    /// Records that this fsync has ended.
    pub fn fsync_ends(&self, covered: &Covered, success: bool) {
        let mut state = self.state();
        if success {
            state.places_are_durable(&covered.0);
        } else {
            state.fsync_failed();
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Extracts storage's error from the error of an fsync.
fn source(error: Error) -> io::Error {
    match error {
        Error::Storage { source, .. } => source,
        error => io::Error::other(error),
    }
}

/// A page that is written again. No batch of it begins until this is dropped.
struct Retry<'a> {
    area: &'a DoubleWrite,
    page: PageId,
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        self.area.state().retried.remove(&self.page);
        self.area.changed.notify_all();
    }
}
