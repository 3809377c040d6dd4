//! The pool: its pages, and what is done with them.

use std::sync::Arc;

use crate::arrivals::Arrivals;
use crate::buffer::Buffers;
use crate::credit::Credit;
use crate::engine::{Engine, Kind};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::log::Log;
use crate::meta::FIRST;
use crate::page::PageId;
use crate::protocol::slots::Slots;
use crate::protocol::word::Layout;
use crate::space::Space;
use crate::statistics::{Counters, Statistics};

/// Pages of a file or a block device, of which as many are in memory as it was given. It is shared by reference.
///
/// Dropping it writes nothing: [`Pool::close`] it first.
pub struct Pool {
    /// Dropped first: its thread writes the engine's memory.
    pub(crate) prefetched: Arrivals,
    pub(crate) engine: Engine,
    pub(crate) layout: Layout,
    /// Numbers from here on are of no page.
    pub(crate) limit: u64,
    /// How many pages are evicted at once.
    pub(crate) batch: usize,
    pub(crate) slots: Slots,
    pub(crate) credit: Credit,
    pub(crate) space: Space,
    pub(crate) home: Home,
    pub(crate) log: Option<Arc<dyn Log>>,
    pub(crate) buffers: Buffers,
    pub(crate) counters: Counters,
    pub(crate) kind: Kind,
    pub(crate) reason: String,
    pub(crate) recovering: bool,
}

impl Pool {
    /// Which engine it has.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Why it has this engine.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the pool was not closed before it was opened: what is in storage is of different moments, and the user's log
    /// has to redo what is missing. See [`Pool::pin_for_redo`] and [`Pool::reclaim`].
    pub fn needs_recovery(&self) -> bool {
        self.recovering
    }

    /// A value that is kept with the pool, such as the page of a tree's root; zero at first. There are [`ROOTS`](crate::ROOTS).
    pub fn root(&self, slot: usize) -> u64 {
        self.home.meta().roots[slot]
    }

    /// Changes such a value, durably with the next [`Pool::sync`] or [`Pool::close`].
    pub fn set_root(&self, slot: usize, value: u64) {
        self.home.meta().roots[slot] = value;
    }

    /// Writes every page that is dirty when this is called. The caller holds no page exclusively.
    ///
    /// Pages whose writing fails stay dirty, and the first error is returned after all others were tried.
    pub fn flush(&self) -> Result<()> {
        self.write_all()
    }

    /// A checkpoint: flushes, and returns when everything is durable, the roots included. Of a log, records from before the
    /// call are not needed any more. The caller holds no page exclusively.
    pub fn sync(&self) -> Result<()> {
        let result = self.checkpoint();
        self.soil_doubtful();
        result
    }

    fn checkpoint(&self) -> Result<()> {
        self.write_again()?;
        self.write_all()?;
        self.home.sync()?;
        self.home.check()?;
        let end = self.space.end();
        let mut meta = self.home.meta();
        meta.end = end;
        meta.open();
        self.home.store(&mut meta)
    }

    /// Makes everything durable, the free pages included, and says so in storage, so that the pool can be opened without
    /// a log. Nobody holds or changes pages meanwhile. The pool can be used afterwards, and closed again.
    pub fn close(&self) -> Result<()> {
        let result = self.conclude();
        self.soil_doubtful();
        result
    }

    fn conclude(&self) -> Result<()> {
        self.write_again()?;
        self.write_all()?;
        let _gate = self.home.stop();
        let space = self.space.lock();
        for slot in 0..self.slots.count() as u32 {
            let page = PageId(self.slots.page(slot));
            let settled = page.is_none() || self.engine.word_of(slot, page).is_settled();
            if !settled || self.slots.is_writing(slot) {
                return Err(Error::Busy { page });
            }
        }
        let mut meta = self.home.meta();
        if meta.clean {
            // Nothing was written; the list of free pages is as it was, unless only that changed.
            meta.clean = false;
            self.home.store(&mut meta)?;
        }
        meta.free = space.save(&self.home)?;
        self.home.sync()?;
        self.home.check()?;
        meta.end = space.end();
        meta.clean = true;
        let stored = self.home.store(&mut meta);
        if stored.is_err() {
            meta.clean = false;
        }
        stored
    }

    /// How many pages are in use, or were lost in a crash.
    pub fn pages_in_use(&self) -> u64 {
        let state = self.space.lock();
        state.end() - FIRST - state.free.len() as u64
    }

    /// What it has done.
    pub fn statistics(&self) -> Statistics {
        self.publish_arrivals();
        let frames = self.slots.count() as u64;
        let resident = frames - self.engine.free_count(&self.slots) as u64;
        let stale = self.engine.stale();
        Statistics { stale, resident, frames, ..self.counters.read_all() }
    }
}
