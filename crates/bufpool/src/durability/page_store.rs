//! Writes pages in an order that keeps a crash from losing any.
//!
//! Before the first page is written after the pool was closed, the superblock durably says that the pool is open
//! ([`PageStore::begin`]). After a failed fsync, pages are in doubt until they have been written once more
//! (`pages_since_sync`). Until then, [`PageStore::check`] fails.
//!
//! Locks, in this order: `gate`, which threads that write pages hold shared and [`close`](crate::Pool::close) holds
//! exclusively; the allocator's lock; `superblock`. The locks of `double`, `group_fsync` and `pages_since_sync` are leaves, and
//! are not held during I/O. At most one fsync runs at a time.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::durability::double_write::{self, DoubleWrite};
use crate::durability::group_fsync::GroupFsync;
use crate::durability::pages_since_sync::PagesSinceSync;
use crate::durability::superblock::Superblock;
use crate::error::{Error, Result};
use crate::images::Images;
use crate::page::{Image, PageId};
use crate::page_size::PageSize;
use crate::storage::{Storage, Write};

pub(crate) struct PageStore {
    pub storage: Arc<dyn Storage>,
    pub double: Option<DoubleWrite>,
    pub size: PageSize,
    gate: RwLock<()>,
    superblock: Mutex<Superblock>,
    /// Whether storage says that the pool is open.
    open: AtomicBool,
    group_fsync: GroupFsync,
    pages_since_sync: PagesSinceSync,
}

impl PageStore {
    pub fn new(storage: Arc<dyn Storage>, double: Option<DoubleWrite>, superblock: Superblock) -> Self {
        let open = AtomicBool::new(!superblock.clean);
        Self {
            storage,
            double,
            size: superblock.size,
            gate: RwLock::new(()),
            superblock: Mutex::new(superblock),
            open,
            group_fsync: GroupFsync::default(),
            pages_since_sync: PagesSinceSync::default(),
        }
    }

    pub fn superblock(&self) -> MutexGuard<'_, Superblock> {
        self.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no thread writes pages, and prevents further writes.
    pub fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Must be called before pages are written. The caller holds the result until the writes have ended.
    pub fn begin(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if !self.open.load(Ordering::Acquire) {
            let mut superblock = self.superblock();
            if !self.open.load(Ordering::Acquire) {
                superblock.open();
                self.store(&mut superblock)?;
            }
        }
        Ok(gate)
    }

    /// Makes a record durable.
    pub fn store(&self, superblock: &mut Superblock) -> Result<()> {
        if superblock.clean {
            // If this fails, the record may be in storage nevertheless.
            self.open.store(false, Ordering::Release);
        }
        let before = superblock.generation;
        superblock.store(&*self.storage)?;
        if let Err(error) = self.sync() {
            // The next attempt writes the same copy, because the other one is durable.
            superblock.generation = before;
            return Err(error);
        }
        self.open.store(!superblock.clean, Ordering::Release);
        Ok(())
    }

    /// Writes pages in their places. The images are in the order of the pages. Each write has the result of its pages; after
    /// a failure, a write has one page.
    pub fn write<'m>(&self, pages: &[PageId], images: Images<'m>) -> Vec<Write<'m>> {
        let mut writes = Vec::with_capacity(images.len());
        let mut rest = images;
        // Consecutive pages are written at once.
        for run in pages.chunk_by(|one, next| one.0 + 1 == next.0) {
            let (now, later) = rest.split_at(run.len());
            writes.push(Write::of(run[0].0, now));
            rest = later;
        }
        match self.begin_places(pages, images) {
            Ok(places) => {
                self.storage.write(&mut writes);
                self.end_places(places, &mut writes);
            }
            Err(error) => {
                for write in &mut writes {
                    write.result = Err(io::Error::new(error.kind(), error.to_string()));
                }
            }
        }
        writes
    }

    /// Makes copies of a batch durable, if there is a double-write area, so that the caller may write the places.
    fn begin_places(&self, pages: &[PageId], images: Images<'_>) -> io::Result<Places<'_>> {
        let double = self.double.as_ref();
        let batch =
            double.map(|double| double.begin(&*self.storage, || self.sync(), pages, images)).transpose()?;
        Ok(self.places(batch))
    }

    /// Does for several batches the first step of [`PageStore::write`]: it makes the copies durable, with one fsync for all. From
    /// then on the caller may write the places of each batch with a result of success. It calls
    /// [`PageStore::end_places`] afterwards.
    ///
    /// There may be fewer results than batches: the others have to wait until regions are free. With `may_wait`, there is at
    /// least one. A thread that has batches in flight must not wait for a region.
    pub fn begin_group(
        &self,
        group: &[(&[PageId], Images<'_>)],
        may_wait: bool,
    ) -> Vec<io::Result<Places<'_>>> {
        match &self.double {
            None => group.iter().map(|_| Ok(self.places(None))).collect(),
            Some(double) => {
                let begun = double.begin_group(&*self.storage, || self.sync(), group, may_wait);
                begun.into_iter().map(|result| Ok(self.places(Some(result?)))).collect()
            }
        }
    }

    /// Number of batches that can begin without waiting for others to end.
    pub fn room_for_batches(&self) -> usize {
        self.double.as_ref().map_or(usize::MAX, DoubleWrite::free_regions)
    }

    fn places<'s>(&self, double: Option<double_write::Batch<'s>>) -> Places<'s> {
        // A failed fsync puts a page in doubt if the writing of its place began before.
        Places { failures: self.pages_since_sync.failures(), double }
    }

    /// Ends a batch after its places have been written, or could not be. A write of several pages that failed is repeated for
    /// each page alone.
    pub fn end_places<'m>(&self, places: Places<'_>, writes: &mut Vec<Write<'m>>) {
        write_singly(&*self.storage, writes);
        if let Some(batch) = places.double {
            batch.end_places(&*self.storage, writes);
        }
        let mut many = false;
        for write in writes.iter().filter(|write| write.result.is_ok()) {
            many |= self.pages_since_sync.written(write.page(), write.images(), places.failures);
        }
        if many {
            // No thread waits for this. If it fails, the next sync writes the pages once more.
            let _ = self.sync();
        }
    }

    /// Makes the writes before this call durable.
    pub fn sync(&self) -> Result<()> {
        let fsync = || {
            self.pages_since_sync.begin();
            let covered = self.double.as_ref().map(|double| (double, double.fsync_begins()));
            let result = self.storage.sync();
            if let Some((double, covered)) = covered {
                double.fsync_ends(&covered, result.is_ok());
            }
            self.pages_since_sync.end(result.is_ok());
            result
        };
        self.group_fsync.run(fsync).map_err(Error::storage("make what was written durable"))
    }

    /// Writes pages in their places that have only a copy in the double-write area. Fails if there is such a page afterwards.
    pub fn retry(&self) -> Result<()> {
        let first_error = self.double.as_ref().and_then(|double| double.retry(&*self.storage).1);
        first_error.map_or(Ok(()), |(page, source)| Err(Error::Write { page, source }))
    }

    /// Whether everything that was written before the last fsync is durable.
    pub fn check(&self) -> Result<()> {
        if self.pages_since_sync.doubtful().is_empty() { Ok(()) } else { Err(Error::NotDurable) }
    }

    /// Pages that may not be durable yet.
    pub fn pages_since_sync(&self) -> &PagesSinceSync {
        &self.pages_since_sync
    }

    /// A copy of a page that may not be in its place.
    pub fn copy(&self, page: PageId) -> Option<Box<Image>> {
        self.double.as_ref()?.copy(page)
    }
}

/// A batch whose places may be written. It goes to [`PageStore::end_places`] when they have been written.
#[must_use = "its places count as doubtful if this is dropped"]
pub(crate) struct Places<'s> {
    /// Number of fsyncs that had failed before the first place was written.
    failures: u64,
    double: Option<double_write::Batch<'s>>,
}

/// A bad sector makes a write of several pages fail, so that each of them is written again alone.
fn write_singly<'m>(storage: &dyn Storage, places: &mut Vec<Write<'m>>) {
    let is_to_split = |place: &Write<'m>| place.result.is_err() && place.images().len() > 1;
    if !places.iter().any(is_to_split) {
        return;
    }
    for place in std::mem::take(places) {
        if !is_to_split(&place) {
            places.push(place);
            continue;
        }
        let single = places.len();
        places.extend(
            (place.page()..).zip(place.images().singly()).map(|(page, image)| Write::of(page, image)),
        );
        storage.write(&mut places[single..]);
    }
}
