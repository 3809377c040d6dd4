//! Pages that are brought in together, before they are needed one by one.
//!
//! Both functions claim the absent pages. They use frames that are free or have clean pages, and do not wait for any. Without
//! enough frames, they leave pages out. The frames of reads in flight become usable again.
//!
//! [`Pool::fetch`] reads the claimed pages and publishes them when all are read. A thread that needs one of them waits for the
//! slowest. [`Pool::prefetch`] leaves the reads to a thread of the pool (`prefetch_queue`) and returns at once. A thread that is
//! about to wait for a page or for a frame ([`Pool::pause`]), or that asks for more, publishes the pages that were read. Until
//! then they are locked, like any page that is being read in. So a reader waits only for the page that it needs.

use crate::access::backoff::Backoff;
use crate::access::fault::Claim;
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::frame_table::FrameId;

impl Pool {
    /// Reads those of the pages that are not in memory, with one submission to storage, and returns when all are read.
    ///
    /// The call is advice like [`Pool::prefetch`], for pages that are needed right away. It does not wait for pages that other
    /// threads are reading in. Without enough frames that are free or clean, it leaves pages out. Such a page is read when a
    /// thread accesses it.
    pub fn fetch(&self, pages: &[PageId]) {
        self.publish_prefetched();
        let claims = self.claim_absent(pages);
        if claims.is_empty() {
            return;
        }
        let _settled = self.prefetch_queue.settle_when_dropped(claims.len());
        // SAFETY: each claim has one read, and lives longer than that read.
        let mut reads: Vec<_> = claims.iter().map(|claim| unsafe { claim.reading() }).collect();
        self.store.storage.read(&mut reads);
        for (claim, read) in claims.into_iter().zip(reads) {
            // If the check fails, the claim is dropped: a thread that needs the page reads it again, and gets the error.
            if claim.verify(read).is_ok() {
                self.counters.read.add(1);
                claim.publish();
            }
        }
    }

    /// Begins to read pages that are not in memory, and returns at once. The pages arrive later, in any order. A thread that
    /// needs one of them earlier waits for that one.
    ///
    /// The call is advice. It takes frames from clean pages that have not been used for long. If these are not enough, or if half
    /// of the memory is in flight already, it leaves the last of the pages out. A page that cannot be read is an error for the
    /// thread that accesses it.
    pub fn prefetch(&self, pages: &[PageId]) {
        self.publish_prefetched();
        // Without the thread, no page is claimed, because nothing would read it.
        if !pages.iter().any(|page| self.would_read(*page))
            || !self.prefetch_queue.is_running(&self.store.storage)
        {
            return;
        }
        let requests = self.claim_absent(pages).into_iter().map(Claim::into_request).collect();
        self.prefetch_queue.ask(requests);
    }

    /// Claims those of the pages that are not in memory, while there are frames. They count as in flight.
    fn claim_absent(&self, pages: &[PageId]) -> Vec<Claim<'_>> {
        let mut claims = Vec::new();
        for page in pages.iter().copied().filter(|page| self.would_read(*page)) {
            if self.engine.refresh(page) || self.engine.is_claimed(page) {
                continue;
            }
            // Other threads need frames too.
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

    /// Whether a page exists and seems not to be in memory, so that an access would read it from storage. The answer is only a
    /// hint, because other threads read and evict pages meanwhile.
    pub fn would_read(&self, page: PageId) -> bool {
        let owner = self.layout.owner(page.0);
        let is_present =
            || self.engine.find(page).is_some_and(|frame_ref| owner.has_in_use(frame_ref.state.load()));
        page.0 < self.limit && !is_present() && self.check(page).is_ok()
    }

    /// Takes a frame without waiting.
    fn frame_at_once(&self) -> Option<FrameId> {
        self.take_free_frame().or_else(|| {
            self.evict_clean();
            self.take_free_frame()
        })
    }

    /// Publishes pages that have been read ahead.
    pub(crate) fn publish_prefetched(&self) {
        for arrival in self.prefetch_queue.take() {
            // If the claim is dropped, the page stays absent, and a thread that needs it reads it again.
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

    /// Waits a little for a page or for a frame. A page that was read ahead may be the one.
    pub(crate) fn pause(&self, backoff: &mut Backoff) {
        self.publish_prefetched();
        backoff.pause();
    }
}
