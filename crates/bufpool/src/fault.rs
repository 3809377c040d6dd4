//! Bringing pages in.

use std::slice;

use crate::arrivals::{Request, verify};
use crate::engine::{Place, Victim};
use crate::error::{Error, Result};
use crate::meta::FIRST;
use crate::page::{Image, PageId};
use crate::pool::Pool;
use crate::protocol::slots::Slot;
use crate::protocol::word::Access;
use crate::storage::Read;
use crate::wait::Backoff;

impl Pool {
    /// Refuses numbers that are of no page.
    pub(crate) fn check(&self, page: PageId) -> Result<()> {
        if (FIRST..self.space.end()).contains(&page.0) { Ok(()) } else { Err(Error::NoSuchPage { page }) }
    }

    /// Brings an absent page in, unless somebody else does: then it waits a little. Says what the caller's access is.
    #[cold]
    pub(crate) fn fault(&self, page: PageId, backoff: &mut Backoff) -> Result<Access> {
        self.check(page)?;
        let Some(mut claim) = self.claim(page, backoff)? else { return Ok(Access::Counted) };
        match claim.read() {
            Ok(()) => {
                claim.publish();
                Ok(Access::Uncounted)
            }
            Err(error) => {
                self.counters.read_failed.add(1);
                Err(error)
            }
        }
    }

    /// Makes room for a page, and claims it; none if it is there after all, or, after a little while, if somebody else has
    /// claimed it.
    pub(crate) fn claim(&self, page: PageId, backoff: &mut Backoff) -> Result<Option<Claim<'_>>> {
        if self.engine.refresh(page) {
            return Ok(None);
        }
        // Nobody is driven out for a page that comes without it.
        if !self.engine.is_claimed(page) {
            let slot = self.take_slot()?;
            if let Some(place) = self.engine.claim(&self.slots, slot, page) {
                self.credit.begin(slot);
                return Ok(Some(Claim::new(self, slot, page, place)));
            }
            self.engine.give(&self.slots, [slot]);
        }
        // Whoever brings it in may need this processor.
        self.pause(backoff);
        Ok(None)
    }
}

/// A page that is being brought in. If it is dropped, the page is not.
pub(crate) struct Claim<'p> {
    pool: &'p Pool,
    slot: Slot,
    page: PageId,
    place: Place<'p>,
    done: bool,
}

impl<'p> Claim<'p> {
    /// Of a page that the engine says is the caller's to bring in.
    pub fn new(pool: &'p Pool, slot: Slot, page: PageId, place: Place<'p>) -> Self {
        Self { pool, slot, page, place, done: false }
    }

    /// The claim that [`Claim::into_request`] left behind.
    pub fn of(pool: &'p Pool, slot: Slot, page: PageId) -> Self {
        let word = pool.engine.word_of(slot, page);
        Self::new(pool, slot, page, Place { word, memory: pool.engine.memory_of(slot, page) })
    }

    /// What is to be read for this claim, which lasts until [`Claim::of`] takes it up again: the memory is the request's.
    pub fn into_request(mut self) -> Request {
        self.done = true;
        // SAFETY: nobody gives the claim up before `Claim::of` does, and the pool keeps the memory until nothing is being read.
        let read = unsafe { self.reading() };
        Request { slot: self.slot, page: self.page, read }
    }

    /// What is to be read for this claim, which is the page's lock: nobody else writes its memory, or believes it.
    ///
    /// # Safety
    /// The page stays claimed as long as what is returned lives, and nothing else is read into it meanwhile.
    pub unsafe fn reading<'r>(&self) -> Read<'r> {
        // SAFETY: as the caller promises.
        unsafe { Read::into_page(self.page.0, self.place.memory) }
    }

    fn read(&mut self) -> Result<()> {
        // SAFETY: the claim lives until it has been read, once.
        let mut reads = [unsafe { self.reading() }];
        self.pool.home.storage.read(&mut reads);
        let [read] = reads;
        if let Err(error) = self.verify(read) {
            let Some(copy) = self.pool.home.copy(self.page) else { return Err(error) };
            // SAFETY: a page, which is the claim's.
            unsafe { self.place.memory.cast::<Image>().write(*copy) };
        }
        self.pool.counters.read.add(1);
        Ok(())
    }

    /// Whether what was read for this claim is the page, as it was written last.
    pub fn verify(&self, read: Read<'_>) -> Result<()> {
        // SAFETY: the claim's memory is a page, which nobody writes any more.
        unsafe { verify(self.place.memory, self.page, read.result) }.and_then(|()| self.believe())
    }

    /// Whether what was read, and is intact, is what was written last.
    pub fn believe(&self) -> Result<()> {
        // SAFETY: a page, aligned and initialised, that nobody writes while the claim lives.
        let image = unsafe { &*self.place.memory.cast::<Image>() };
        let page = self.page;
        if self.pool.home.unsynced().is_last(page, image) { Ok(()) } else { Err(Error::Lost { page }) }
    }

    /// Its memory has its content.
    pub fn publish(mut self) {
        self.done = true;
        self.pool.engine.settle(self.slot, self.page, self.place);
        self.place.word.publish(self.pool.layout);
    }

    /// Its memory is the caller's to fill, who has the page locked from now on.
    pub fn publish_locked(mut self) -> (Place<'p>, u64) {
        self.done = true;
        let place = self.pool.engine.settle(self.slot, self.page, self.place);
        (place, self.place.word.publish_locked())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.done {
            // Its memory was touched, and a slot is worth no more than one page. Should the kernel refuse, this one page
            // is counted as free and is not, until it is brought in again.
            let victim = Victim { slot: self.slot, page: self.page };
            let _ = self.pool.engine.discard(slice::from_ref(&victim));
            self.pool.engine.abandon(&self.pool.slots, self.slot, self.page);
            self.pool.engine.give(&self.pool.slots, [self.slot]);
        }
    }
}
