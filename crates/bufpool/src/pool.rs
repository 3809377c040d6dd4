//! The pool: its pages, and what is done with them.

use std::path::Path;
use std::sync::Arc;

use crate::buffer::Buffers;
use crate::builder::Builder;
use crate::engine::{Engine, Kind, Place};
use crate::error::{Error, Result};
use crate::guard::{Exclusive, Optimistic, Shared};
use crate::home::Home;
use crate::log::Log;
use crate::meta::FIRST;
use crate::page::PageId;
use crate::prefetch::Prefetch;
use crate::protocol::slots::Slots;
use crate::protocol::word::{Layout, Owner, Refusal, is_ready};
use crate::space::Space;
use crate::statistics::{Counters, Statistics};
use crate::wait::Backoff;

/// Pages of a file or a block device, of which as many are in memory as it was given. It is shared by reference.
///
/// Dropping it writes nothing: [`Pool::close`] it first.
pub struct Pool {
    /// Dropped first: its thread writes the engine's memory.
    pub(crate) prefetched: Prefetch,
    pub(crate) engine: Engine,
    pub(crate) layout: Layout,
    /// Numbers from here on are of no page.
    pub(crate) limit: u64,
    /// How many pages are evicted at once.
    pub(crate) batch: usize,
    pub(crate) slots: Slots,
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
    /// Begins to open the pool in a file or a block device; a file that does not exist is created.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

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

    /// Begins to read a page optimistically, bringing it in if it is not in memory.
    #[inline]
    pub fn optimistic(&self, page: PageId) -> Result<Optimistic<'_>> {
        if page.0 < self.limit
            && let Some(place) = self.engine.find(page)
        {
            let seen = place.word.load();
            // A word of its own is the page's whatever it says.
            let is_its = matches!(self.engine, Engine::Mapped(_))
                || self.layout.owner(page.0).has(seen) && self.engine.is_of(&self.slots, &place, page);
            if is_ready(seen) && is_its {
                return Ok(Optimistic::new(self, place, page, seen));
            }
        }
        self.optimistic_slowly(page)
    }

    #[cold]
    fn optimistic_slowly(&self, page: PageId) -> Result<Optimistic<'_>> {
        let (place, seen) = self.get(page, |place, owner| place.word.try_optimistic(owner), |_, _| {})?;
        Ok(Optimistic::new(self, place, page, seen))
    }

    /// Reads a page until nobody has disturbed it. `f` may be called several times, with content that is not to be
    /// believed (see [`Optimistic`]); what its last call returned is of the page as it was at one moment.
    #[inline]
    pub fn optimistic_read<R>(&self, page: PageId, mut f: impl FnMut(Optimistic<'_>) -> R) -> Result<R> {
        loop {
            let read = self.optimistic(page)?;
            let result = f(read);
            if read.validate().is_ok() {
                return Ok(result);
            }
        }
    }

    /// Holds a page exclusively.
    #[inline]
    pub fn pin_exclusive(&self, page: PageId) -> Result<Exclusive<'_>> {
        let attempt = |place: &Place<'_>, owner| place.word.try_exclusive(owner);
        let (place, before) = self.get(page, attempt, |place, _| place.word.unlock_unchanged())?;
        Ok(Exclusive::new(self, place, page, before))
    }

    /// Holds a page shared: up to 255 may.
    #[inline]
    pub fn pin_shared(&self, page: PageId) -> Result<Shared<'_>> {
        let attempt = |place: &Place<'_>, owner| place.word.try_shared(owner);
        let (place, ()) = self.get(page, attempt, |place, ()| place.word.unlock_shared())?;
        Ok(Shared::new(place, page))
    }

    /// Attempts something on a page's word until it works, bringing the page in when it is absent. If it worked on
    /// another page's word, it is undone.
    #[inline]
    fn get<'p, T>(
        &'p self,
        page: PageId,
        attempt: impl Fn(&Place<'p>, Owner) -> std::result::Result<T, Refusal>,
        undo: impl Fn(&Place<'p>, T),
    ) -> Result<(Place<'p>, T)> {
        if page.0 >= self.limit {
            return Err(Error::NoSuchPage { page });
        }
        let owner = self.layout.owner(page.0);
        let mut backoff = Backoff::default();
        loop {
            let Some(place) = self.engine.find(page) else {
                self.fault(page, &mut backoff)?;
                continue;
            };
            match attempt(&place, owner) {
                Ok(result) if self.engine.is_of(&self.slots, &place, page) => return Ok((place, result)),
                Ok(result) => undo(&place, result),
                Err(Refusal::Absent) => self.fault(page, &mut backoff)?,
                Err(Refusal::Held) => self.pause(&mut backoff),
            }
        }
    }

    /// A page that is not in use, of zeros, held exclusively.
    pub fn allocate(&self) -> Result<Exclusive<'_>> {
        let page = self.space.allocate(&self.home)?;
        match self.take_over(page) {
            Ok(mut exclusive) => {
                exclusive.clear();
                self.counters.allocated.add(1);
                Ok(exclusive)
            }
            Err(error) => {
                self.space.free(page);
                Err(error)
            }
        }
    }

    /// Holds a page exclusively whose content does not matter.
    pub(crate) fn take_over(&self, page: PageId) -> Result<Exclusive<'_>> {
        let owner = self.layout.owner(page.0);
        let mut backoff = Backoff::default();
        loop {
            let attempt = self.engine.find(page).map(|place| (place, place.word.try_exclusive(owner)));
            match attempt {
                Some((place, Ok(before))) if self.engine.is_of(&self.slots, &place, page) => {
                    return Ok(Exclusive::new(self, place, page, before));
                }
                Some((place, Ok(_))) => place.word.unlock_unchanged(),
                Some((_, Err(Refusal::Held))) => self.pause(&mut backoff),
                None | Some((_, Err(Refusal::Absent))) => {
                    if let Some(claim) = self.claim(page, &mut backoff)? {
                        let (place, before) = claim.publish_locked();
                        return Ok(Exclusive::new(self, place, page, before));
                    }
                }
            }
        }
    }

    /// Brings a page in without reading it, and touches it: for those who measure what replacing pages takes without
    /// storage. What is in it then is whatever was in its memory.
    #[doc(hidden)]
    pub fn bring_in_unread(&self, page: PageId) -> Result<()> {
        self.check(page)?;
        self.take_over(page)?.touch();
        Ok(())
    }

    /// Gives a page back. Optimistic readers that still look at it will not find it valid. It is an error if the page is
    /// not in use.
    pub fn free(&self, exclusive: Exclusive<'_>) -> Result<()> {
        let page = exclusive.page();
        // Whoever is given it now waits until it is let go.
        if !self.space.free(page) {
            return Err(Error::NoSuchPage { page });
        }
        exclusive.discard();
        if self.log.is_none() {
            self.home.unsynced().forget(page.0);
        }
        self.counters.freed.add(1);
        Ok(())
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
