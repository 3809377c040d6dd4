//! Taking hold of pages: those that are there, those that have to be brought in, and those that are not in use yet.

use crate::engine::{Engine, Place};
use crate::error::{Error, Result};
use crate::guard::{Exclusive, Optimistic, Shared};
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::word::{Access, Owner, Refusal, is_ready};
use crate::wait::Backoff;

impl Pool {
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
        let (place, seen) =
            self.get(page, |place, owner, access| place.word.try_optimistic(owner, access), |_, _| {})?;
        Ok(Optimistic::new(self, place, page, seen))
    }

    /// Begins to read a page optimistically if that needs no waiting: it is in memory, and nobody holds it exclusively.
    /// That is no use of it that lets it stay there.
    pub fn try_optimistic(&self, page: PageId) -> Option<Optimistic<'_>> {
        let owner = (page.0 < self.limit).then(|| self.layout.owner(page.0))?;
        let place = self.engine.find(page)?;
        let seen = place.word.try_optimistic(owner, Access::Uncounted).ok()?;
        let is_its = self.engine.is_of(&self.slots, &place, page);
        is_its.then(|| Optimistic::new(self, place, page, seen))
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
        let attempt = |place: &Place<'_>, owner, access| place.word.try_exclusive(owner, access);
        let (place, before) = self.get(page, attempt, |place, _| place.word.unlock_unchanged())?;
        Ok(Exclusive::new(self, place, page, before))
    }

    /// Holds a page shared: up to 255 may.
    #[inline]
    pub fn pin_shared(&self, page: PageId) -> Result<Shared<'_>> {
        let attempt = |place: &Place<'_>, owner, access| place.word.try_shared(owner, access);
        let (place, ()) = self.get(page, attempt, |place, ()| place.word.unlock_shared())?;
        Ok(Shared::new(place, page))
    }

    /// Attempts something on a page's word until it works, bringing the page in when it is absent. If it worked on
    /// another page's word, it is undone.
    #[inline]
    fn get<'p, T>(
        &'p self,
        page: PageId,
        attempt: impl Fn(&Place<'p>, Owner, Access) -> std::result::Result<T, Refusal>,
        undo: impl Fn(&Place<'p>, T),
    ) -> Result<(Place<'p>, T)> {
        if page.0 >= self.limit {
            return Err(Error::NoSuchPage { page });
        }
        let owner = self.layout.owner(page.0);
        let (mut backoff, mut access) = (Backoff::default(), Access::Counted);
        loop {
            let Some(place) = self.engine.find(page) else {
                access = self.fault(page, &mut backoff)?;
                continue;
            };
            match attempt(&place, owner, access) {
                Ok(result) if self.engine.is_of(&self.slots, &place, page) => return Ok((place, result)),
                Ok(result) => undo(&place, result),
                Err(Refusal::Absent) => access = self.fault(page, &mut backoff)?,
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
            let attempt =
                self.engine.find(page).map(|place| (place, place.word.try_exclusive(owner, Access::Counted)));
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
}
