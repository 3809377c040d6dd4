//! Bringing pages in.

use std::slice;

use crate::engine::{Place, Victim};
use crate::error::{Error, Result};
use crate::meta::FIRST;
use crate::page::{self, Damage, PAGE, PageId};
use crate::pool::Pool;
use crate::protocol::slots::Slot;
use crate::storage::Read;
use crate::writeback::TOGETHER;

impl Pool {
    /// Refuses numbers that are of no page.
    pub(crate) fn check(&self, page: PageId) -> Result<()> {
        if (FIRST..self.space.end()).contains(&page.0) { Ok(()) } else { Err(Error::NoSuchPage { page }) }
    }

    /// Brings an absent page in, unless somebody else does.
    #[cold]
    pub(crate) fn fault(&self, page: PageId) -> Result<()> {
        self.check(page)?;
        let Some(mut claim) = self.claim(page)? else { return Ok(()) };
        match claim.read() {
            Ok(()) => {
                claim.publish();
                Ok(())
            }
            Err(error) => {
                self.counters.read_failed.add(1);
                Err(error)
            }
        }
    }

    /// Brings pages in together that are not in memory: the storage has all of them to do at once, and the caller waits
    /// once. It is advice; a page that cannot be read is an error for whoever needs it.
    pub fn prefetch(&self, pages: &[PageId]) {
        // What is being brought in cannot be evicted.
        let together = TOGETHER.min(self.slots.count() / 4);
        let is_absent = |page: &PageId| {
            let owner = self.layout.owner(page.0);
            let present = self.engine.find(*page).is_some_and(|place| owner.has_in_use(place.word.load()));
            !present && self.check(*page).is_ok()
        };
        let mut absent =
            pages.iter().copied().filter(|page| page.0 < self.limit).filter(is_absent).peekable();
        while absent.peek().is_some() {
            let mut claims = Vec::with_capacity(together);
            for page in absent.by_ref().take(together) {
                let Ok(claim) = self.claim(page) else { return };
                claims.extend(claim);
            }
            let mut reads: Vec<_> = claims.iter_mut().map(Claim::request).collect();
            self.home.storage.read(&mut reads);
            for (claim, read) in claims.into_iter().zip(reads) {
                if claim.verify(read.result).is_ok() {
                    claim.publish();
                }
            }
        }
    }

    /// Makes room for a page, and claims it; none if somebody else has.
    pub(crate) fn claim(&self, page: PageId) -> Result<Option<Claim<'_>>> {
        if self.engine.refresh(page) {
            return Ok(None);
        }
        let slot = self.take_slot()?;
        match self.engine.claim(&self.slots, slot, page) {
            Some(place) => Ok(Some(Claim { pool: self, slot, page, place, done: false })),
            None => {
                self.engine.give(&self.slots, [slot]);
                Ok(None)
            }
        }
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
    /// What is to be read for this claim.
    pub fn request(&mut self) -> Read<'p> {
        // SAFETY: the claim is the page's lock: nobody else writes its memory, or believes it.
        unsafe { Read::into_page(self.page.0, self.place.memory) }
    }

    /// Whether what was read is the page.
    pub fn verify(&self, result: std::io::Result<()>) -> Result<()> {
        let page = self.page;
        result.map_err(|source| Error::Read { page, source })?;
        // SAFETY: a page of memory, aligned and initialised, that nobody writes while the claim lives.
        let image = unsafe { &*self.place.memory.cast::<[u8; PAGE]>() };
        page::verify(image, page).map_err(|damage: Damage| Error::Damaged { page, damage })?;
        self.pool.counters.read.add(1);
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let mut reads = [self.request()];
        self.pool.home.storage.read(&mut reads);
        let [read] = reads;
        self.verify(read.result)
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
