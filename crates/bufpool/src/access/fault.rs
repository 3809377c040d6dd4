//! Page faults of the pool: pages are read into memory.

use std::slice;

use crate::access::backoff::Backoff;
use crate::access::prefetch_queue::{Request, image_at, verify};
use crate::durability::superblock::FIRST;
use crate::engine::{FrameRef, Victim};
use crate::error::{Error, Result};
use crate::page::{self, Damage, PageId};
use crate::pool::Pool;
use crate::protocol::frame_table::FrameId;
use crate::protocol::page_state::Access;
use crate::storage::Read;

impl Pool {
    /// Fails if there is no page with this number.
    pub(crate) fn check(&self, page: PageId) -> Result<()> {
        if (FIRST..self.allocator.end()).contains(&page.0) { Ok(()) } else { Err(Error::NoSuchPage { page }) }
    }

    /// Reads an absent page in. If another thread is reading it in, waits a little. Returns how the caller's next
    /// access counts.
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

    /// Takes a frame for a page, and claims the page. Returns none if the page is present after all. Also returns none,
    /// after a short wait, if another thread has claimed the page.
    pub(crate) fn claim(&self, page: PageId, backoff: &mut Backoff) -> Result<Option<Claim<'_>>> {
        if self.engine.refresh(page) {
            return Ok(None);
        }
        // If another thread is reading the page in, no page is evicted for it.
        if !self.engine.is_claimed(page) {
            let frame = self.take_frame()?;
            if let Some(frame_ref) = self.engine.claim(&self.frames, frame, page) {
                self.usage.reset(frame);
                return Ok(Some(Claim::new(self, frame, page, frame_ref)));
            }
            self.engine.free(&self.frames, [frame]);
        }
        // The thread that reads the page in may need this processor.
        self.pause_for_page(backoff);
        Ok(None)
    }
}

/// The right to read a page in. If it is dropped before the page is published, the claim is abandoned.
pub(crate) struct Claim<'p> {
    pool: &'p Pool,
    frame: FrameId,
    page: PageId,
    frame_ref: FrameRef<'p>,
    done: bool,
}

impl<'p> Claim<'p> {
    /// The claim of a page that the engine has given to the caller.
    pub fn new(pool: &'p Pool, frame: FrameId, page: PageId, frame_ref: FrameRef<'p>) -> Self {
        Self { pool, frame, page, frame_ref, done: false }
    }

    /// Recreates the claim that [`Claim::into_request`] has turned into a request.
    pub fn of(pool: &'p Pool, frame: FrameId, page: PageId) -> Self {
        let state = pool.engine.state_of(frame, page);
        Self::new(pool, frame, page, FrameRef { state, memory: pool.engine.memory_of(frame, page) })
    }

    /// Turns the claim into a request to read the page. The request owns the memory until [`Claim::of`] recreates the
    /// claim.
    pub fn into_request(mut self) -> Request {
        self.done = true;
        // SAFETY: only `Claim::of` ends the claim, and the pool keeps the memory until no read is in flight.
        let read = unsafe { self.reading() };
        Request { frame: self.frame, page: self.page, read }
    }

    /// The read for this claim. The claim is the page's lock: no other thread writes the memory or uses its content.
    ///
    /// # Safety
    /// The page stays claimed while the returned value lives, and nothing else is read into it meanwhile.
    pub unsafe fn reading<'r>(&self) -> Read<'r> {
        // SAFETY: guaranteed by the caller.
        unsafe { Read::into_page(self.page.0, self.pool.size, self.frame_ref.memory) }
    }

    fn read(&mut self) -> Result<()> {
        if let Err(error) = self.read_place() {
            match self.pool.store.copy(self.page) {
                // SAFETY: the claim lives until the page has been filled, and its read has ended.
                Some(copy) => unsafe { self.reading() }.fill(&copy),
                None if matches!(error, Error::Read { .. }) => return Err(error),
                // The copy may have been put in the place, durably, after the place was read.
                None => self.read_place()?,
            }
        }
        self.pool.counters.read.add(1);
        Ok(())
    }

    /// Reads the page from its place, and checks it.
    fn read_place(&mut self) -> Result<()> {
        // SAFETY: the claim lives until the read has ended, and there is only one read.
        let mut reads = [unsafe { self.reading() }];
        self.pool.store.storage.read(&mut reads);
        let [read] = reads;
        self.verify(read)
    }

    /// Checks that the memory has the page, as it was last written.
    pub fn verify(&self, read: Read<'_>) -> Result<()> {
        // SAFETY: the claim's memory is a page, and no thread writes it any more.
        self.accept(unsafe { verify(self.frame_ref.memory, self.pool.size, self.page, read.result) })
    }

    /// Decides whether the page can be published after a verification with this result. The image must be the last one
    /// that was written, or the page must never have been written.
    pub fn accept(&self, verified: Result<()>) -> Result<()> {
        match verified {
            Err(Error::Damaged { page, damage: Damage::Missing }) => {
                self.verify_current()?;
                if self.pool.allocator.may_be_unwritten(page) { Ok(()) } else { verified }
            }
            _ => verified.and_then(|()| self.verify_current()),
        }
    }

    /// Checks that the image, which is intact, is the last one that was written.
    fn verify_current(&self) -> Result<()> {
        // SAFETY: an aligned and initialised page, which no thread writes while the claim lives.
        let image = unsafe { image_at(self.frame_ref.memory, self.pool.size) };
        let page = self.page;
        if !self.pool.store.pages_since_sync().is_last(page, image) {
            return Err(Error::Lost { page });
        }
        self.check_log_reaches(page::lsn(image))
    }

    /// Fails if a page in storage has an LSN that the log never reached. No page is written before its records are durable, so the
    /// log had this LSN before the pool was opened, and lost its end. A page that was written since then has an LSN up to
    /// `last_lsn`.
    fn check_log_reaches(&self, lsn: u64) -> Result<()> {
        match self.pool.log_end {
            Some(log_end) if lsn > log_end && lsn > self.pool.last_lsn.get() => {
                Err(Error::PageAheadOfLog { page: self.page, lsn, log_end })
            }
            _ => Ok(()),
        }
    }

    /// Makes the page present for all threads. Its memory has its content.
    pub fn publish(mut self) {
        self.done = true;
        self.pool.engine.settle(self.frame, self.page, self.frame_ref);
        self.frame_ref.state.publish(self.pool.layout);
    }

    /// Makes the page present, and keeps it locked for the caller, which fills its memory.
    pub fn publish_locked(mut self) -> (FrameRef<'p>, u64) {
        self.done = true;
        let frame_ref = self.pool.engine.settle(self.frame, self.page, self.frame_ref);
        (frame_ref, self.frame_ref.state.publish_locked())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.done {
            // The page's memory was touched, and it must be released before the frame is free. If the kernel refuses,
            // the frame counts as free although this page still uses memory. That ends when the page is read in again.
            let victim = Victim { frame: self.frame, page: self.page };
            let _ = self.pool.engine.discard(slice::from_ref(&victim));
            self.pool.engine.abandon(&self.pool.frames, self.frame, self.page);
            self.pool.engine.free(&self.pool.frames, [self.frame]);
        }
    }
}
