//! The pool: its pages, and the operations on all of them.
//!
//! A [`Pool`] is its user's. Its [`Core`] is what the page provider's threads need, too: frames, their pages, and how pages are
//! written. The core has an address of its own, because the user may move the pool while those threads run.

use std::ops::Deref;
use std::sync::Arc;

use crate::access::prefetch_queue::PrefetchQueue;
use crate::buffer::Buffers;
use crate::durability::last_lsn::LastLsn;
use crate::durability::log::Log;
use crate::durability::page_allocator::PageAllocator;
use crate::durability::page_store::PageStore;
use crate::durability::superblock::FIRST;
use crate::engine::{Engine, Kind};
use crate::error::{Error, Result};
use crate::page::PageId;
use crate::page_size::PageSize;
use crate::protocol::frame_table::FrameTable;
use crate::protocol::page_state::Layout;
use crate::replacement::provider::Provider;
use crate::replacement::usage_count::UsageCounts;
use crate::statistics::{Counters, Statistics};

/// Pages of a file or a block device, of which as many are in memory as it was given. It is shared by reference.
///
/// Dropping it writes nothing: [`Pool::close`] it first.
pub struct Pool {
    /// Dropped first: its threads use the core.
    pub(crate) provider: Provider,
    /// Dropped before the core: its thread writes the engine's memory.
    pub(crate) prefetch_queue: PrefetchQueue,
    pub(crate) core: Arc<Core>,
    /// Numbers from here on are of no page.
    pub(crate) limit: u64,
    /// Words of a payload. Every access needs this number, so it is beside `limit` and not computed.
    pub(crate) payload_words: usize,
    pub(crate) allocator: PageAllocator,
    pub(crate) last_lsn: LastLsn,
    /// The LSN up to which the log was durable when the pool was opened. None without a log.
    pub(crate) log_end: Option<u64>,
    pub(crate) kind: Kind,
    pub(crate) reason: String,
    pub(crate) recovering: bool,
}

/// The part of a pool that its background threads share with its user.
#[doc(hidden)]
pub struct Core {
    pub(crate) engine: Engine,
    pub(crate) size: PageSize,
    pub(crate) layout: Layout,
    /// How many pages are evicted at once.
    pub(crate) batch: usize,
    pub(crate) frames: FrameTable,
    pub(crate) usage: UsageCounts,
    pub(crate) store: PageStore,
    pub(crate) log: Option<Arc<dyn Log>>,
    pub(crate) buffers: Buffers,
    pub(crate) counters: Counters,
}

#[doc(hidden)]
impl Deref for Pool {
    type Target = Core;

    #[inline(always)]
    fn deref(&self) -> &Core {
        &self.core
    }
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

    /// The size of its pages.
    #[inline]
    pub fn page_size(&self) -> PageSize {
        self.size
    }

    /// Whether the pool was not closed before it was opened: what is in storage is of different moments, and the user's log
    /// has to redo what is missing. See [`Pool::pin_for_redo`] and [`Pool::reclaim`].
    pub fn needs_recovery(&self) -> bool {
        self.recovering
    }

    /// A value that is kept with the pool, such as the page of a tree's root; zero at first. There are [`ROOTS`](crate::ROOTS).
    pub fn root(&self, slot: usize) -> u64 {
        self.store.superblock().roots[slot]
    }

    /// Changes such a value, durably with the next [`Pool::sync`] or [`Pool::close`].
    pub fn set_root(&self, slot: usize, value: u64) {
        self.store.superblock().roots[slot] = value;
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
        self.mark_doubtful_dirty();
        result
    }

    fn checkpoint(&self) -> Result<()> {
        let lsn = self.last_lsn.get();
        let written_up_to = self.allocator.written_up_to();
        self.write_again()?;
        // A page that cannot be written does not keep the others from being durable.
        let written = self.write_all();
        let placed = self.store.retry();
        self.make_log_durable(lsn)?;
        self.store.sync()?;
        written.and(placed)?;
        self.store.check()?;
        let end = self.allocator.end();
        let mut superblock = self.store.superblock();
        superblock.end = end;
        superblock.written_up_to = written_up_to;
        superblock.lsn = lsn;
        superblock.open();
        self.store.store(&mut superblock)
    }

    /// Makes everything durable, the free pages included, and says so in storage, so that the pool can be opened without
    /// a log. Nobody holds or changes pages meanwhile. The pool can be used afterwards, and closed again.
    pub fn close(&self) -> Result<()> {
        let result = self.conclude();
        self.mark_doubtful_dirty();
        result
    }

    fn conclude(&self) -> Result<()> {
        self.write_again()?;
        let written = self.write_all();
        // From here on nothing writes kept copies again, because the list of free pages may be written in their places.
        written.and(self.store.retry())?;
        // Before the gate: a provider's thread holds it for as long as one of its writes is in flight.
        let _paused = self.provider.pause();
        let _gate = self.store.stop();
        let mut space = self.allocator.lock();
        for frame in 0..self.frames.count() as u32 {
            let page = PageId(self.frames.page(frame));
            let settled = page.is_none() || self.engine.state_of(frame, page).is_settled();
            if !settled || self.frames.is_writing(frame) {
                return Err(Error::Busy { page });
            }
        }
        let mut superblock = self.store.superblock();
        if superblock.clean {
            // Nothing was written; the list of free pages is as it was, unless only that changed.
            superblock.clean = false;
            self.store.store(&mut superblock)?;
        }
        let lsn = self.last_lsn.get();
        self.make_log_durable(lsn)?;
        space.fill_unwritten(&self.store, lsn)?;
        superblock.free = space.save(&self.store, lsn)?;
        self.store.sync()?;
        self.store.check()?;
        superblock.end = space.end();
        superblock.written_up_to = space.end();
        superblock.lsn = lsn;
        superblock.clean = true;
        let stored = self.store.store(&mut superblock);
        if stored.is_err() {
            superblock.clean = false;
        }
        stored
    }

    /// Makes the log durable up to a number that is about to be stored without a record.
    fn make_log_durable(&self, up_to: u64) -> Result<()> {
        match &self.log {
            Some(log) if up_to > log.durable_lsn() => log.make_durable(up_to).map_err(Error::Log),
            _ => Ok(()),
        }
    }

    /// Makes sure that so many more pages can be allocated: the next allocations, if nobody else allocates meanwhile, fail
    /// neither because all pages are in use nor because storage is full. The storage becomes larger if it has to.
    pub fn reserve(&self, pages: u64) -> Result<()> {
        self.allocator.reserve(pages, &self.store)
    }

    /// How many pages are in use, or were lost in a crash.
    pub fn pages_in_use(&self) -> u64 {
        let state = self.allocator.lock();
        state.end() - FIRST - state.free.len() as u64
    }

    /// What it has done.
    pub fn statistics(&self) -> Statistics {
        self.publish_prefetched();
        let frames = self.frames.count() as u64;
        let free = self.engine.free_count(&self.frames) as u64;
        Statistics {
            #[cfg(feature = "ring0")]
            stale: self.engine.stale(),
            resident: frames - free,
            free,
            frames,
            allocator_waits: self.allocator.waits(),
            free_list_waits: self.frames.free_list_waits(),
            ..self.counters.read_all()
        }
    }
}
