//! Pages that are brought in together, before they are needed one by one.
//!
//! Both ways claim what is absent, taking room that is free or clean and waiting for none, and do less where there is no
//! room. What is in flight is room that comes back.
//!
//! [`Pool::fetch`] has storage read what it claimed, and publishes it when all of it is there: whoever needs one of the pages
//! waits for the slowest. [`Pool::prefetch`] leaves that to a thread of the pool's (`arrivals`) and returns at once. What the
//! thread has read is published by whoever is about to wait for a page or for room ([`Pool::pause`]), or asks for more; until
//! then it is locked like any other page that is being brought in. So a reader waits for the page it needs, and for no other.

use crate::fault::Claim;
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::slots::Slot;
use crate::wait::Backoff;

impl Pool {
    /// Brings those of the pages in that are not in memory, all at once, and returns when they are there: one submission to
    /// storage, and one wait, for as many as there are.
    ///
    /// It is advice like [`Pool::prefetch`], for pages that are needed right away. It does not wait for pages that others
    /// are bringing in, and where there is no room that is free or clean, it does less; a page that it left out is brought
    /// in when it is asked for.
    pub fn fetch(&self, pages: &[PageId]) {
        self.publish_arrivals();
        let claims = self.claim_absent(pages);
        if claims.is_empty() {
            return;
        }
        let _settled = self.prefetched.settle_when_dropped(claims.len());
        // SAFETY: claims live longer than reads, of which each has one.
        let mut reads: Vec<_> = claims.iter().map(|claim| unsafe { claim.reading() }).collect();
        self.home.storage.read(&mut reads);
        for (claim, read) in claims.into_iter().zip(reads) {
            // Should it be dropped: whoever needs it reads it again, and is told.
            if claim.verify(read).is_ok() {
                self.counters.read.add(1);
                claim.publish();
            }
        }
    }

    /// Begins to bring pages in that are not in memory, and returns at once: they arrive later, in any order. Whoever
    /// needs one of them earlier waits for that one.
    ///
    /// It is advice. It takes room from pages that are clean and have not been used for long; where that is not enough, or
    /// half of the memory is on its way already, the last of the pages are left out. A page that cannot be read is an error
    /// for whoever needs it.
    pub fn prefetch(&self, pages: &[PageId]) {
        self.publish_arrivals();
        // Where there is no thread, nothing is claimed that nobody would read.
        if !pages.iter().any(|page| self.is_absent(*page)) || !self.prefetched.is_running(&self.home.storage)
        {
            return;
        }
        let requests = self.claim_absent(pages).into_iter().map(Claim::into_request).collect();
        self.prefetched.ask(requests);
    }

    /// Claims those of the pages that are not in memory, as long as there is room. They are counted as being in flight.
    fn claim_absent(&self, pages: &[PageId]) -> Vec<Claim<'_>> {
        let mut claims = Vec::new();
        for page in pages.iter().copied().filter(|page| self.is_absent(*page)) {
            if self.engine.refresh(page) || self.engine.is_claimed(page) {
                continue;
            }
            // Others need room, too.
            if !self.prefetched.begin(self.slots.count() / 2) {
                break;
            }
            let Some(slot) = self.slot_at_once() else {
                self.prefetched.settled();
                break;
            };
            match self.engine.claim(&self.slots, slot, page) {
                Some(place) => {
                    claims.push(Claim::new(self, slot, page, place));
                    self.credit.begin_unasked(slot);
                }
                None => {
                    self.engine.give(&self.slots, [slot]);
                    self.prefetched.settled();
                }
            }
        }
        claims
    }

    /// Whether a page is one, and seems not to be in memory.
    fn is_absent(&self, page: PageId) -> bool {
        let owner = self.layout.owner(page.0);
        let is_present = || self.engine.find(page).is_some_and(|place| owner.has_in_use(place.word.load()));
        page.0 < self.limit && !is_present() && self.check(page).is_ok()
    }

    /// A slot for which nobody has to wait.
    fn slot_at_once(&self) -> Option<Slot> {
        self.engine.take(&self.slots).or_else(|| {
            self.evict_clean();
            self.engine.take(&self.slots)
        })
    }

    /// Publishes pages that have been read ahead.
    pub(crate) fn publish_arrivals(&self) {
        for arrival in self.prefetched.take() {
            // Should it be dropped: what it asked for is not there, and whoever needs it asks again.
            let claim = Claim::of(self, arrival.slot, arrival.page);
            if arrival.result.and_then(|()| claim.believe()).is_ok() {
                self.counters.read.add(1);
                claim.publish();
            }
            self.prefetched.settled();
        }
    }

    /// Waits a little for a page or for room. What has been read ahead may be it.
    pub(crate) fn pause(&self, backoff: &mut Backoff) {
        self.publish_arrivals();
        backoff.pause();
    }
}
