//! Pages that are brought in together, before they are needed one by one.
//!
//! Both ways claim what is absent, taking room that is free or clean and waiting for none, and do less where there is no
//! room. What is in flight is room that comes back.
//!
//! [`Pool::fetch`] has storage read what it claimed, and publishes it when all of it is there: whoever needs one of the pages
//! waits for the slowest. [`Pool::prefetch`] leaves that to a thread of the pool's (`prefetch_queue`) and returns at once. What the
//! thread has read is published by whoever is about to wait for a page or for room ([`Pool::pause`]), or asks for more; until
//! then it is locked like any other page that is being brought in. So a reader waits for the page it needs, and for no other.

use crate::access::backoff::Backoff;
use crate::access::fault::Claim;
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::frame_table::FrameId;

impl Pool {
    /// Brings those of the pages in that are not in memory, all at once, and returns when they are there: one submission to
    /// storage, and one wait, for as many as there are.
    ///
    /// It is advice like [`Pool::prefetch`], for pages that are needed right away. It does not wait for pages that others
    /// are bringing in, and where there is no room that is free or clean, it does less; a page that it left out is brought
    /// in when it is asked for.
    pub fn fetch(&self, pages: &[PageId]) {
        self.publish_prefetched();
        let claims = self.claim_absent(pages);
        if claims.is_empty() {
            return;
        }
        let _settled = self.prefetch_queue.settle_when_dropped(claims.len());
        // SAFETY: claims live longer than reads, of which each has one.
        let mut reads: Vec<_> = claims.iter().map(|claim| unsafe { claim.reading() }).collect();
        self.store.storage.read(&mut reads);
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
        self.publish_prefetched();
        // Where there is no thread, nothing is claimed that nobody would read.
        if !pages.iter().any(|page| self.would_read(*page))
            || !self.prefetch_queue.is_running(&self.store.storage)
        {
            return;
        }
        let requests = self.claim_absent(pages).into_iter().map(Claim::into_request).collect();
        self.prefetch_queue.ask(requests);
    }

    /// Claims those of the pages that are not in memory, as long as there is room. They are counted as being in flight.
    fn claim_absent(&self, pages: &[PageId]) -> Vec<Claim<'_>> {
        let mut claims = Vec::new();
        for page in pages.iter().copied().filter(|page| self.would_read(*page)) {
            if self.engine.refresh(page) || self.engine.is_claimed(page) {
                continue;
            }
            // Others need room, too.
            if !self.prefetch_queue.begin(self.frames.count() / 2) {
                break;
            }
            let Some(frame) = self.frame_at_once() else {
                self.prefetch_queue.settled();
                break;
            };
            match self.engine.claim(&self.frames, frame, page) {
                Some(frame_ref) => {
                    claims.push(Claim::new(self, frame, page, frame_ref));
                    self.usage.reset_prefetched(frame);
                }
                None => {
                    self.engine.free(&self.frames, [frame]);
                    self.prefetch_queue.settled();
                }
            }
        }
        claims
    }

    /// Whether a page exists and seems not to be in memory, so that its use would read it from storage. It is advice, because
    /// others bring pages in and evict pages meanwhile.
    pub fn would_read(&self, page: PageId) -> bool {
        let owner = self.layout.owner(page.0);
        let is_present =
            || self.engine.find(page).is_some_and(|frame_ref| owner.has_in_use(frame_ref.state.load()));
        page.0 < self.limit && !is_present() && self.check(page).is_ok()
    }

    /// A frame for which nobody has to wait.
    fn frame_at_once(&self) -> Option<FrameId> {
        self.take_free_frame().or_else(|| {
            self.evict_clean();
            self.take_free_frame()
        })
    }

    /// Publishes pages that have been read ahead.
    pub(crate) fn publish_prefetched(&self) {
        for arrival in self.prefetch_queue.take() {
            // Should it be dropped: what it asked for is not there, and whoever needs it asks again.
            let claim = Claim::of(self, arrival.frame, arrival.page);
            if claim.accept(arrival.result).is_ok() {
                self.counters.read.add(1);
                claim.publish();
            }
            self.prefetch_queue.settled();
        }
    }

    /// Waits a little for a page that another thread holds or reads in. The first wait of an access is counted.
    #[cold]
    pub(crate) fn pause_for_page(&self, backoff: &mut Backoff) {
        if backoff.is_new() {
            self.counters.page_waits.add(1);
        }
        self.pause(backoff);
    }

    /// Waits a little for a page or for room. What has been read ahead may be it.
    pub(crate) fn pause(&self, backoff: &mut Backoff) {
        self.publish_prefetched();
        backoff.pause();
    }
}
