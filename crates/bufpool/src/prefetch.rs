//! Pages that are brought in before they are needed.
//!
//! [`Pool::prefetch`] claims pages and has a thread of the pool's read them (`arrivals`). It waits for nothing: it takes room
//! that is free or clean, and does less where there is none. What the thread has read is published by whoever is about to
//! wait for a page or for room ([`Pool::pause`]), or asks for more; until then it is locked like any other page that is
//! being brought in. So a reader waits for the page it needs, and for no other, and what is in flight is room that comes
//! back.

use crate::fault::Claim;
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::slots::Slot;
use crate::wait::Backoff;

impl Pool {
    /// Begins to bring pages in that are not in memory, and returns at once: they arrive later, in any order. Whoever
    /// needs one of them earlier waits for that one.
    ///
    /// It is advice. It takes room from pages that are clean and have not been used for long; where that is not enough, or
    /// half of the memory is on its way already, the last of the pages are left out. A page that cannot be read is an error
    /// for whoever needs it.
    pub fn prefetch(&self, pages: &[PageId]) {
        self.publish_arrivals();
        let is_absent = |page: &PageId| {
            let owner = self.layout.owner(page.0);
            let present = self.engine.find(*page).is_some_and(|place| owner.has_in_use(place.word.load()));
            !present && self.check(*page).is_ok()
        };
        let mut requests = Vec::new();
        for page in pages.iter().copied().filter(|page| page.0 < self.limit).filter(is_absent) {
            // Others need room, too.
            if self.prefetched.in_flight() + requests.len() >= self.slots.count() / 2 {
                break;
            }
            if requests.is_empty() && !self.prefetched.is_running(&self.home.storage) {
                return;
            }
            if self.engine.refresh(page) || self.engine.is_claimed(page) {
                continue;
            }
            let Some(slot) = self.slot_at_once() else { break };
            match self.engine.claim(&self.slots, slot, page) {
                Some(place) => requests.push(Claim::new(self, slot, page, place).into_request()),
                None => self.engine.give(&self.slots, [slot]),
            }
        }
        self.prefetched.ask(requests);
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
            if arrival.result.is_ok() && claim.believe().is_ok() {
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
