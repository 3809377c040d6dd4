//! Page tables of a memory: main's tables, snapshots' tables, and tables that are not in use.
//!
//! A [`TableSet`] is a complete set. It has a topmost table, which a snapshot's processor uses, and the entry of
//! that table for the memory. The entry can also be put into the process's own topmost table; then the set is
//! main's.
//!
//! Taking a snapshot without copying (section 4.2) takes two prepared sets. One becomes the snapshot's. The other,
//! which is write-protected as well, replaces main's. Main's previous set is prepared again.
//!
//! A prepared set never becomes outdated. With prioritized copy-on-write (section 4.4), main's frames never change.
//! The only changes of main's entries make pages writable, and a prepared set must not contain these. For the same
//! reason a set is prepared without reading main's tables, which are in use.

use std::sync::{Condvar, Mutex, MutexGuard};

use bedplate_ring0::Windows;
use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{
    Directory, PageSize, PageTables, PagingError, Protect, Pte, PteFlags, TableSource, VirtRange,
};

/// Number of bytes copied between two checks for requests of other processors: 64 tables.
const STEP: u64 = 128 << 20;

/// A set of tables. See the module.
#[derive(Debug)]
pub struct TableSet {
    tables: PageTables<'static, Windows>,
    directory: Directory<'static>,
    /// The entry of a topmost table for the memory.
    pub entry: Pte,
}

impl TableSet {
    /// Creates tables that share everything with the process's except the memories. They have leaf tables for
    /// `range`, but map nothing yet.
    pub fn new(
        process: &PageTables<'static, Windows>,
        all: VirtRange,
        range: VirtRange,
        frames: &mut impl TableSource,
    ) -> Result<Self, PagingError> {
        let tables = process.create_sharing(all, frames)?;
        let directory = match tables.directory_or_add(range, frames) {
            Ok(directory) => directory,
            Err(error) => {
                free(tables, all, frames);
                return Err(error);
            }
        };
        let entry = tables.top().slots[entry_of(range)].load();
        Ok(Self { tables, directory, entry })
    }

    /// The guest-physical address of the topmost table.
    pub fn root(&self) -> u64 {
        self.tables.root().address()
    }

    /// The entries of the memory.
    #[inline]
    pub fn directory(&self) -> &Directory<'static> {
        &self.directory
    }

    /// Prepares the set: maps main's frames, write-protected. No processor may use the set or have cached any of
    /// it.
    pub fn protect(&self, frame: impl Fn(usize) -> Frame) {
        for (page, address) in self.directory.range().pages().enumerate() {
            if let Some(entry) = self.directory.slot(address) {
                entry.store_exclusive(Pte::leaf(frame(page), PageSize::Size4K, PteFlags::empty()));
            }
        }
    }

    /// Copies `main` into this set, and write-protects both. No other code may change main's entries meanwhile.
    /// Processors may use them; their accessed and dirty bits may be lost, but are not needed. Calls `between` from
    /// time to time.
    pub fn copy(
        &self,
        main: &TableSet,
        frames: &mut impl TableSource,
        between: impl Fn(),
    ) -> Result<(), PagingError> {
        let range = self.directory.range();
        let mut start = range.start();
        while start < range.end() {
            let part = VirtRange::new(start, (start + STEP).min(range.end()))?;
            match main.tables.clone_range(&self.tables, part, Protect::BothQuiesced, frames) {
                Ok(_) => start = part.end(),
                Err(error) => return Err(error),
            }
            between();
        }
        Ok(())
    }

    /// Gives back the frames of the set.
    ///
    /// # Safety
    /// No processor may use the set, and no other code may know it.
    pub unsafe fn free(self, all: VirtRange, frames: &mut impl TableSource) {
        free(self.tables, all, frames);
    }
}

fn free(tables: PageTables<'static, Windows>, all: VirtRange, frames: &mut impl TableSource) {
    // SAFETY: by the callers' promise no processor uses the tables; those below `all` belong to this set.
    unsafe {
        tables.free_range(all, bedplate_ring0::paging::Which::All, frames);
        tables.free_root(frames);
    }
}

/// The index of the entry of a topmost table that leads to a range.
pub fn entry_of(range: VirtRange) -> usize {
    (range.start() >> 39) as usize & 511
}

/// The tables that are not in use.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "put into use with the latch held, where nothing may be allocated")]
pub struct PooledTables {
    /// Prepared sets: write-protected, with main's frames.
    pub ready: Vec<Box<TableSet>>,
    /// Sets that must be prepared again.
    pub used: Vec<Box<TableSet>>,
    /// Number of sets that are being prepared.
    pub copying: usize,
    /// Number of pages in limbo at the last check.
    pub waiting: u64,
    /// Whether snapshots have ended since the last check of limbo.
    pub ended: bool,
    /// Whether limbo is being checked.
    pub looking: bool,
    /// Whether preparing failed for lack of frames. It is tried again when a snapshot has ended.
    pub short: bool,
    /// Whether the memory is being dropped.
    pub closing: bool,
}

impl PooledTables {
    /// Whether the reclaiming thread is checking, or will check, for frames of ended snapshots. It notifies waiters
    /// of the pool afterwards.
    pub fn is_reclaimed_soon(&self) -> bool {
        !self.closing && (self.ended || self.looking)
    }
}

/// The tables that are not in use, with a condition variable for changes.
#[derive(Debug, Default)]
pub struct TablePool {
    pooled: Mutex<PooledTables>,
    changed: Condvar,
}

impl TablePool {
    pub fn lock(&self) -> MutexGuard<'_, PooledTables> {
        self.pooled.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn wait<'a>(&'a self, guard: MutexGuard<'a, PooledTables>) -> MutexGuard<'a, PooledTables> {
        self.changed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn notify(&self) {
        self.changed.notify_all();
    }
}
