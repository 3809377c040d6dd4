//! The pool: its pages, and the operations on all of them.
//!
//! A [`Pool`] belongs to its user. Its [`Core`] is the part that the page provider's threads also need: frames, their pages, and
//! the writing of pages. The core has an address of its own, because the user may move the pool while those threads run.

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

/// The pages of a file or a block device. Those that fit into its memory are in memory. Threads share it by reference.
///
/// A drop writes nothing, so call [`Pool::close`] before.
pub struct Pool {
    /// Is dropped first, because its threads use the core.
    pub(crate) provider: Provider,
    /// Is dropped before the core, because its thread writes the engine's memory.
    pub(crate) prefetch_queue: PrefetchQueue,
    pub(crate) core: Arc<Core>,
    /// Exclusive upper limit of page numbers.
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
    /// Number of pages that are evicted at once.
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
    /// The engine of the pool.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The reason why it has this engine.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The size of its pages.
    #[inline]
    pub fn page_size(&self) -> PageSize {
        self.size
    }

    /// Whether the pool was not closed before it was opened. If so, its pages are from different moments, and the user must redo
    /// the missing changes from its log. See [`Pool::pin_for_redo`] and [`Pool::reclaim`].
    pub fn needs_recovery(&self) -> bool {
        self.recovering
    }

    /// A value that is stored with the pool, such as the page of a tree's root. It is zero at first. There are
    /// [`ROOTS`](crate::ROOTS).
    pub fn root(&self, slot: usize) -> u64 {
        self.store.superblock().roots[slot]
    }

    /// Changes such a value. The next [`Pool::sync`] or [`Pool::close`] makes the change durable.
    pub fn set_root(&self, slot: usize, value: u64) {
        self.store.superblock().roots[slot] = value;
    }

    /// Writes every page that is dirty when this is called. The caller holds no page exclusively.
    ///
    /// Pages whose writing fails stay dirty. The first error is returned after all other pages were tried.
    pub fn flush(&self) -> Result<()> {
        self.write_all()
    }

    /// Makes a checkpoint: flushes, and returns when everything is durable, including the roots. Log records from before the call
    /// are then no longer needed. The caller holds no page exclusively.
    pub fn sync(&self) -> Result<()> {
        let result = self.checkpoint();
        self.mark_doubtful_dirty();
        result
    }

    fn checkpoint(&self) -> Result<()> {
        let lsn = self.last_lsn.get();
        let written_up_to = self.allocator.written_up_to();
        self.write_again()?;
        // A page that cannot be written does not prevent the others from becoming durable.
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

    /// Makes everything durable, including the free pages, and records this in storage, so that the pool can be opened without a
    /// log. No thread may hold or change pages meanwhile. The pool can be used afterwards, and closed again.
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
        // This comes before the gate, because a thread of the provider holds the gate while one of its writes is in flight.
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
            // Nothing was written; the list of free pages is unchanged, unless only the list changed.
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

    /// Ensures that `pages` more pages can be allocated. If no other thread allocates meanwhile, the next allocations cannot fail
    /// for lack of pages or storage. The storage grows if necessary.
    pub fn reserve(&self, pages: u64) -> Result<()> {
        self.allocator.reserve(pages, &self.store)
    }

    /// Number of pages that are in use, or were lost in a crash.
    pub fn pages_in_use(&self) -> u64 {
        let state = self.allocator.lock();
        state.end() - FIRST - state.free.len() as u64
    }

    /// The pool's counters.
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
