//! Making room: a clock over the frames with another chance for pages that were used since its hand passed, and more of them
//! for those that were used again and again (`usage_count`).
//!
//! With a page provider (`provider`), a thread that needs a frame evicts clean pages only, and only if no frame is free. Without one,
//! it evicts a batch of pages: clean pages leave first; dirty ones are written, without being locked for it, and leave unless
//! they were used meanwhile.

use std::time::Duration;

use crate::access::backoff::Backoff;
use crate::engine::Victim;
use crate::error::{Error, Result};
use crate::page::PageId;
use crate::pool::{Core, Pool};
use crate::protocol::frame_table::FrameId;
use crate::protocol::sweep::{self, Found};
use crate::replacement::provider::{Answer, MOST_OFFERED};
use crate::replacement::usage_count::ROUNDS;

/// How many frames the hand passes at most for a thread that needs a frame and does not wait for one.
const PART: usize = 1 << 14;

/// After so many frames, a thread that looks for a clean page looks whether another thread has freed a frame.
const LOOK_AFTER: usize = 1 << 10;

/// A thread that has found a victim looks for others in so many frames for each page of a batch. They share its system call.
const FRAMES_FOR_ONE: usize = 4;

/// How long all pages may be pinned before that is an error.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a thread waits for the provider before it looks again for a clean page, which others may have let go of.
const LOOK_AGAIN: Duration = Duration::from_millis(4);

/// The frames that the clock's hand has found.
pub(super) struct Sweep {
    /// Clean pages, which are locked.
    pub victims: Vec<Victim>,
    /// Frames of dirty pages that become victims when they have been written.
    pub dirty: Vec<FrameId>,
    /// The most dirty pages to remember.
    most_dirty: usize,
    /// Pages have become colder, so the hand may find more when it comes again.
    has_aged: bool,
}

impl Sweep {
    /// Nothing has been found.
    pub fn new(most_dirty: usize) -> Self {
        Self { victims: Vec::new(), dirty: Vec::new(), most_dirty, has_aged: false }
    }
}

impl Core {
    /// Passes the clock's hand over a frame.
    pub(super) fn sweep_frame(&self, frame: FrameId, sweep: &mut Sweep) {
        let word = |page| self.engine.state_of(frame, PageId(page));
        let mut may_stay = false;
        let decrement = || {
            may_stay = self.usage.decrement(frame);
            may_stay
        };
        let found = sweep::sweep_frame(&self.frames, frame, word, decrement);
        sweep.has_aged |= may_stay;
        match found {
            Found::Nothing => {}
            Found::Cooled => {
                sweep.has_aged = true;
                self.usage.increment(frame);
            }
            Found::Dirty if sweep.dirty.len() < sweep.most_dirty => sweep.dirty.push(frame),
            Found::Dirty => {}
            Found::Victim(page) => sweep.victims.push(Victim { frame, page: PageId(page) }),
        }
    }

    /// Gives the memory of victims back, and their frames. Returns how many pages left. It is an error only if none did.
    pub(super) fn release(&self, victims: &mut Vec<Victim>) -> Result<usize> {
        if victims.is_empty() {
            return Ok(0);
        }
        let (result, calls) = self.engine.release(victims);
        let released = match &result {
            Ok(()) => victims.len(),
            Err((released, _)) => *released,
        };
        for victim in &victims[released..] {
            sweep::keep(self.engine.state_of(victim.frame, victim.page));
        }
        victims.truncate(released);
        for victim in victims.iter() {
            let word = self.engine.state_of(victim.frame, victim.page);
            sweep::release(&self.frames, victim.frame, word, self.layout);
        }
        self.engine.free(&self.frames, victims.drain(..).map(|victim| victim.frame));
        self.counters.evicted.add(released as u64);
        self.counters.release_calls.add(calls);
        match result {
            Err((0, source)) => Err(Error::Storage { what: "give memory back to the kernel", source }),
            _ => Ok(released),
        }
    }
}

impl Pool {
    /// A frame for a page that the caller brings in.
    pub(crate) fn take_frame(&self) -> Result<FrameId> {
        match self.take_free_frame() {
            Some(frame) => Ok(frame),
            None if self.provider.is_on() => self.take_frame_or_wait(),
            None => self.take_frame_or_write(),
        }
    }

    /// Takes a frame that is free.
    pub(crate) fn take_free_frame(&self) -> Option<FrameId> {
        let (frame, left) = self.engine.take(&self.frames)?;
        self.provider.frame_taken(&self.core, left);
        Some(frame)
    }

    /// Evicts clean pages to have a frame. If no page is clean, it waits for the provider.
    fn take_frame_or_wait(&self) -> Result<FrameId> {
        let mut backoff = Backoff::default();
        let mut has_waited = false;
        loop {
            let look_again = self.evict_any_clean()?;
            if let Some(frame) = self.take_free_frame() {
                return Ok(frame);
            }
            if look_again {
                continue;
            }
            if !has_waited {
                has_waited = true;
                self.counters.frame_waits.add(1);
            }
            let elapsed = backoff.elapsed();
            match self.provider.wait_for_frame(LOOK_AGAIN) {
                Answer::LookAgain => self.publish_prefetched(),
                Answer::Nothing => {
                    // A page that is being read ahead has no holder: it can be evicted when it is there.
                    if elapsed > PATIENCE && self.prefetch_queue.in_flight() == 0 {
                        // The provider may have freed one and found enough of them.
                        return self.take_free_frame().ok_or(Error::Pinned { frames: self.frames.count() });
                    }
                    self.pause(&mut backoff);
                }
                Answer::Failed(error) => {
                    // Writes of other batches may have succeeded since.
                    self.evict_any_clean()?;
                    return self.take_free_frame().ok_or(error);
                }
                Answer::Gone => return self.take_frame_or_write(),
            }
            if let Some(frame) = self.take_free_frame() {
                return Ok(frame);
            }
        }
    }

    /// Evicts pages to have a frame, and writes them if they are dirty.
    fn take_frame_or_write(&self) -> Result<FrameId> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(frame) = self.take_free_frame() {
                return Ok(frame);
            }
            if self.evict()? > 0 {
                continue;
            }
            // A page that is being read ahead has no holder: it can be evicted when it is there.
            if backoff.elapsed() > PATIENCE && self.prefetch_queue.in_flight() == 0 {
                return Err(Error::Pinned { frames: self.frames.count() });
            }
            self.pause(&mut backoff);
        }
    }

    /// Evicts clean pages for a thread that does not wait for a frame, a batch at most. Of a large memory, the clock's hand passes
    /// over a part.
    pub(crate) fn evict_clean(&self) {
        let mut sweep = Sweep::new(MOST_OFFERED);
        for _ in 0..(ROUNDS * self.frames.count()).min(PART) {
            self.sweep_frame(self.frames.advance(), &mut sweep);
            if sweep.victims.len() >= self.batch {
                break;
            }
        }
        self.provider.offer(&sweep.dirty);
        // Pages that the kernel does not take back stay where they are.
        let _ = self.release(&mut sweep.victims);
    }

    /// Evicts clean pages, a batch at most, unless another thread frees a frame meanwhile. False: no page is clean and unused. The
    /// provider learns of dirty pages on the way.
    fn evict_any_clean(&self) -> Result<bool> {
        let count = self.frames.count();
        let mut sweep = Sweep::new(MOST_OFFERED);
        let mut is_free = false;
        for passed in 1..=ROUNDS * count {
            self.sweep_frame(self.frames.advance(), &mut sweep);
            let enough = if passed >= FRAMES_FOR_ONE * self.batch { 1 } else { self.batch };
            is_free = passed % LOOK_AFTER == 0 && self.engine.free_count(&self.frames) > 0;
            // If no page has become colder in a whole round, the next one finds nothing either.
            let in_vain = passed % count == 0 && !std::mem::take(&mut sweep.has_aged);
            if sweep.victims.len() >= enough || is_free || in_vain {
                break;
            }
        }
        self.provider.offer(&sweep.dirty);
        Ok(self.release(&mut sweep.victims)? > 0 || is_free)
    }

    /// Evicts a batch, and returns how many pages that were. It is an error only if there were none.
    fn evict(&self) -> Result<usize> {
        let mut sweep = Sweep::new(self.batch);
        // The first times around, everything may have been used.
        for _ in 0..ROUNDS * self.frames.count() {
            self.sweep_frame(self.frames.advance(), &mut sweep);
            if sweep.victims.len() + sweep.dirty.len() >= self.batch {
                break;
            }
        }
        let mut evicted = self.release(&mut sweep.victims)?;
        if !sweep.dirty.is_empty() {
            let dirty = std::mem::take(&mut sweep.dirty);
            // Pages that others hold stay in this list; pages that were written leave it, and are clean now.
            let written = self.write_back(&mut dirty.clone());
            for frame in dirty {
                self.sweep_frame(frame, &mut sweep);
            }
            evicted += self.release(&mut sweep.victims)?;
            if evicted == 0 {
                written?;
            }
        }
        Ok(evicted)
    }
}
