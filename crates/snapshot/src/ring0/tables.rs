//! Page tables of a memory: main's, snapshots', and those that wait to be one or the other.
//!
//! A [`TableSet`] is a whole set: a topmost table, which a snapshot's processor uses, and an entry of it that leads to the
//! memory, which can also be put into the process's own topmost table: then it is main's.
//!
//! Taking a snapshot without copying (4.2) takes two that are ready: one becomes the snapshot's, and one, which is
//! write-protected as well, takes main's place. What was main's goes back to be made ready again.
//!
//! What is ready never goes stale, so nothing has to be kept in step: with prioritized copy-on-write (4.4) main's frames
//! are always the same, and all that happens to main's entries is that pages become writable, which those of a ready
//! table are not to be. For the same reason a ready table is written without looking at main's, which is in use.

use std::sync::{Condvar, Mutex, MutexGuard};

use bedplate_ring0::Windows;
use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{
    Directory, PageSize, PageTables, PagingError, Protect, Pte, PteFlags, TableSource, VirtRange,
};

/// How much is copied between two looks at what other processors want: 64 tables.
const STEP: u64 = 128 << 20;

/// See the module.
#[derive(Debug)]
pub struct TableSet {
    tables: PageTables<'static, Windows>,
    directory: Directory<'static>,
    /// What a topmost table has at the memory's place.
    pub entry: Pte,
}

impl TableSet {
    /// Tables that share everything with the process's but the memories, and can map `range`; they do not yet.
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

    /// The topmost table.
    pub fn root(&self) -> u64 {
        self.tables.root().address()
    }

    /// The entries of the memory.
    #[inline]
    pub fn directory(&self) -> &Directory<'static> {
        &self.directory
    }

    /// Becomes ready: write-protected, with the frames of main's. Nobody uses it, and no processor has anything of it
    /// cached.
    pub fn protect(&self, frame: impl Fn(usize) -> Frame) {
        for (page, address) in self.directory.range().pages().enumerate() {
            if let Some(entry) = self.directory.slot(address) {
                entry.store_exclusive(Pte::leaf(frame(page), PageSize::Size4K, PteFlags::empty()));
            }
        }
    }

    /// Becomes a copy of `main`, and both are write-protected. Nobody changes main's entries meanwhile, but the
    /// processors that use them: their accessed and dirty bits may be lost, which nobody looks at. `between` is called from time to time.
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

    /// Gives its frames back.
    ///
    /// # Safety
    /// No processor uses it, and nobody else knows it.
    pub unsafe fn free(self, all: VirtRange, frames: &mut impl TableSource) {
        free(self.tables, all, frames);
    }
}

fn free(tables: PageTables<'static, Windows>, all: VirtRange, frames: &mut impl TableSource) {
    // SAFETY: by the callers' promise no processor uses them; what is below `all` is their own.
    unsafe {
        tables.free_range(all, bedplate_ring0::paging::Which::All, frames);
        tables.free_root(frames);
    }
}

/// Which entry of a topmost table leads to a range.
pub fn entry_of(range: VirtRange) -> usize {
    (range.start() >> 39) as usize & 511
}

/// Tables that nobody uses.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "put into use with the latch held, where nothing may be allocated")]
pub struct PooledTables {
    /// Copies of main's, write-protected.
    pub ready: Vec<Box<TableSet>>,
    /// To be copied again.
    pub used: Vec<Box<TableSet>>,
    /// How many somebody is copying.
    pub copying: usize,
    /// Pages in limbo, as of the last look.
    pub waiting: u64,
    /// Snapshots have ended since limbo was looked at.
    pub ended: bool,
    /// Somebody is looking.
    pub looking: bool,
    /// Copying failed for want of frames; tried again when a snapshot has ended.
    pub short: bool,
    /// The memory's owner is gone.
    pub closing: bool,
}

impl PooledTables {
    /// Whether the thread that reclaims frames looks, or will look, for those of snapshots that have ended; it then says
    /// that the pool has changed.
    pub fn is_reclaimed_soon(&self) -> bool {
        !self.closing && (self.ended || self.looking)
    }
}

/// The tables that nobody uses, and the threads that wait for them to change.
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
