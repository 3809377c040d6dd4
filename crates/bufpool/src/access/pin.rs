//! Access to pages: pages in memory, pages that must be read in, and pages that are not in use yet.

use crate::access::backoff::Backoff;
use crate::access::guard::{Exclusive, Optimistic, Shared};
use crate::engine::{Engine, FrameRef};
use crate::error::{Error, Result};
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::page_state::{Access, Owner, Refusal, is_ready};

impl Pool {
    /// Begins an optimistic read of a page, and reads the page in if it is not in memory. Fails if there is no such
    /// page, if it cannot be read, or if no frame becomes free.
    #[inline]
    pub fn optimistic(&self, page: PageId) -> Result<Optimistic<'_>> {
        if page.0 < self.limit
            && let Some(frame_ref) = self.engine.find(page)
        {
            let seen = frame_ref.state.load();
            // If each page has its own state, the state always belongs to the page.
            let is_its = matches!(self.engine, Engine::Mapped(_))
                || self.layout.owner(page.0).has(seen) && self.engine.is_of(&self.frames, &frame_ref, page);
            if is_ready(seen) && is_its {
                return Ok(Optimistic::new(self, frame_ref, page, seen));
            }
        }
        self.optimistic_slowly(page)
    }

    #[cold]
    fn optimistic_slowly(&self, page: PageId) -> Result<Optimistic<'_>> {
        let (frame_ref, seen) = self.get(
            page,
            |frame_ref, owner, access| frame_ref.state.try_optimistic(owner, access),
            |_, _| {},
        )?;
        Ok(Optimistic::new(self, frame_ref, page, seen))
    }

    /// Begins an optimistic read of a page if this needs no waiting: it is in memory, and no thread holds it
    /// exclusively. The clock does not count this as a use, so it does not keep the page in memory.
    pub fn try_optimistic(&self, page: PageId) -> Option<Optimistic<'_>> {
        let owner = (page.0 < self.limit).then(|| self.layout.owner(page.0))?;
        let frame_ref = self.engine.find(page)?;
        let seen = frame_ref.state.try_optimistic(owner, Access::Uncounted).ok()?;
        let is_its = self.engine.is_of(&self.frames, &frame_ref, page);
        is_its.then(|| Optimistic::new(self, frame_ref, page, seen))
    }

    /// Reads a page until no other thread disturbs the read. `f` may run several times, with content that may be
    /// inconsistent (see [`Optimistic`]). The returned result is that of the last run, which saw the page as it was at
    /// one moment. Fails like [`Pool::optimistic`].
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

    /// Takes a page exclusively. Waits for threads that hold it. Fails like [`Pool::optimistic`].
    #[inline]
    pub fn pin_exclusive(&self, page: PageId) -> Result<Exclusive<'_>> {
        let attempt =
            |frame_ref: &FrameRef<'_>, owner, access| self.exclusive_or_await(frame_ref, page, owner, access);
        let (frame_ref, before) =
            self.get(page, attempt, |frame_ref, _| frame_ref.state.unlock_unchanged())?;
        Ok(Exclusive::new(self, frame_ref, page, before))
    }

    /// Locks a page that was found, or sets the awaited bit if other threads hold it shared.
    #[inline]
    fn exclusive_or_await(
        &self,
        frame_ref: &FrameRef<'_>,
        page: PageId,
        owner: Owner,
        access: Access,
    ) -> std::result::Result<u64, Refusal> {
        let is_its = || self.engine.is_of(&self.frames, frame_ref, page);
        frame_ref.state.try_exclusive_or_await(owner, access, is_its)
    }

    /// Takes a page shared. Up to 127 guards can share a page. Fails like [`Pool::optimistic`].
    ///
    /// While a thread waits to hold the page exclusively, no other thread gets it shared. So threads must take shared
    /// pages in an order without circles too, and no thread may take a page twice.
    #[inline]
    pub fn pin_shared(&self, page: PageId) -> Result<Shared<'_>> {
        let attempt = |frame_ref: &FrameRef<'_>, owner, access| frame_ref.state.try_shared(owner, access);
        let (frame_ref, ()) = self.get(page, attempt, |frame_ref, ()| frame_ref.state.unlock_shared())?;
        Ok(Shared::new(self, frame_ref, page))
    }

    /// Repeats `attempt` on a page's state until it succeeds, and reads the page in if it is absent. If the attempt
    /// succeeded on the state of another page, `undo` reverts it.
    #[inline]
    fn get<'p, T>(
        &'p self,
        page: PageId,
        attempt: impl Fn(&FrameRef<'p>, Owner, Access) -> std::result::Result<T, Refusal>,
        undo: impl Fn(&FrameRef<'p>, T),
    ) -> Result<(FrameRef<'p>, T)> {
        if page.0 >= self.limit {
            return Err(Error::NoSuchPage { page });
        }
        let owner = self.layout.owner(page.0);
        let (mut backoff, mut access) = (Backoff::default(), Access::Counted);
        loop {
            let Some(frame_ref) = self.engine.find(page) else {
                access = self.fault(page, &mut backoff)?;
                continue;
            };
            match attempt(&frame_ref, owner, access) {
                Ok(result) if self.engine.is_of(&self.frames, &frame_ref, page) => {
                    return Ok((frame_ref, result));
                }
                Ok(result) => undo(&frame_ref, result),
                Err(Refusal::Absent) => access = self.fault(page, &mut backoff)?,
                Err(Refusal::Held) => self.pause_for_page(&mut backoff),
            }
        }
    }

    /// Allocates a page that is not in use. It contains zeros and is held exclusively. Fails if all pages are in use,
    /// if storage cannot grow, or if no frame becomes free.
    ///
    /// The page's log sequence number is the greatest that the pool has seen. The page may have had records in an
    /// earlier use, and redo must not apply these to it. The first record about it must have the whole page
    /// ([`Log`](crate::Log)).
    pub fn allocate(&self) -> Result<Exclusive<'_>> {
        let page = self.allocator.allocate(&self.store)?;
        match self.take_over(page) {
            Ok(mut exclusive) => {
                exclusive.clear(self.last_lsn.get());
                self.counters.allocated.add(1);
                Ok(exclusive)
            }
            Err(error) => {
                self.allocator.free(page);
                Err(error)
            }
        }
    }

    /// Takes a page exclusively whose content does not matter. An absent page is not read from storage.
    pub(crate) fn take_over(&self, page: PageId) -> Result<Exclusive<'_>> {
        let owner = self.layout.owner(page.0);
        let mut backoff = Backoff::default();
        loop {
            let attempt = self.engine.find(page).map(|frame_ref| {
                (frame_ref, self.exclusive_or_await(&frame_ref, page, owner, Access::Counted))
            });
            match attempt {
                Some((frame_ref, Ok(before))) if self.engine.is_of(&self.frames, &frame_ref, page) => {
                    return Ok(Exclusive::new(self, frame_ref, page, before));
                }
                Some((frame_ref, Ok(_))) => frame_ref.state.unlock_unchanged(),
                Some((_, Err(Refusal::Held))) => self.pause_for_page(&mut backoff),
                None | Some((_, Err(Refusal::Absent))) => {
                    if let Some(claim) = self.claim(page, &mut backoff)? {
                        let (frame_ref, before) = claim.publish_locked();
                        return Ok(Exclusive::new(self, frame_ref, page, before));
                    }
                }
            }
        }
    }

    /// Takes a page into memory without a read, and touches it. Benchmarks measure page replacement without storage
    /// this way. The content of the page is whatever was in its memory.
    #[cfg(feature = "bench")]
    #[doc(hidden)]
    pub fn bring_in_unread(&self, page: PageId) -> Result<()> {
        self.check(page)?;
        self.take_over(page)?.touch();
        Ok(())
    }

    /// Frees a page. Optimistic reads of it that are still in progress fail to validate. Fails if the page is not in
    /// use.
    pub fn free(&self, exclusive: Exclusive<'_>) -> Result<()> {
        let page = exclusive.page();
        // A thread that allocates the page now waits until it is unlocked.
        if !self.allocator.free(page) {
            return Err(Error::NoSuchPage { page });
        }
        exclusive.discard();
        if self.log.is_none() {
            self.store.pages_since_sync().forget(page.0);
        }
        self.counters.freed.add(1);
        Ok(())
    }
}
