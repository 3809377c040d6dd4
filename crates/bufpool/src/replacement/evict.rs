//! Eviction by a clock over the frames. Pages that were used since the hand passed get another chance, and pages that were used
//! repeatedly get several (`usage_count`).
//!
//! With a page provider (`provider`), a thread that needs a frame only evicts clean pages, and only if no frame is free. Without
//! a provider, it evicts a batch of pages. Clean pages leave first. Dirty pages are written without a lock, and leave unless they
//! were used meanwhile.

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

/// Maximum number of frames that the hand passes for a thread that does not wait for a frame.
const PART: usize = 1 << 14;

/// Number of frames after which a thread that looks for a clean page checks whether another thread has freed a frame.
const LOOK_AFTER: usize = 1 << 10;

/// Number of frames per page of a batch in which a thread that has found a victim looks for others. They share its system call.
const FRAMES_FOR_ONE: usize = 4;

/// Time for which all pages may be pinned before that is an error.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for which a thread waits for the provider before it looks again for a clean page, which other threads may have released.
const LOOK_AGAIN: Duration = Duration::from_millis(4);

/// The frames that the clock's hand has found.
pub(super) struct Sweep {
    /// Clean pages, which are locked.
    pub victims: Vec<Victim>,
    /// Frames of dirty pages that become victims when they have been written.
    pub dirty: Vec<FrameId>,
    /// Maximum number of dirty pages to remember.
    most_dirty: usize,
    /// Whether pages have become colder, so that the hand may find more at its next pass.
    has_aged: bool,
}

impl Sweep {
    /// A sweep that has found nothing.
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

    /// Releases the memory of victims, and frees their frames. Returns the number of pages that left. It fails only if none did.
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
    /// Takes a frame for a page that the caller reads in.
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
                    // A page that is being read ahead has no holder, so it can be evicted after its read.
                    if elapsed > PATIENCE && self.prefetch_queue.in_flight() == 0 {
                        // The provider may have freed a frame, and may have enough of them.
                        return self.take_free_frame().ok_or(Error::Pinned { frames: self.frames.count() });
                    }
                    self.pause(&mut backoff);
                }
                Answer::Failed(error) => {
                    // Writes of other batches may have succeeded since then.
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
            // A page that is being read ahead has no holder, so it can be evicted after its read.
            if backoff.elapsed() > PATIENCE && self.prefetch_queue.in_flight() == 0 {
                return Err(Error::Pinned { frames: self.frames.count() });
            }
            self.pause(&mut backoff);
        }
    }

    /// Evicts up to a batch of clean pages, for a thread that does not wait for a frame. In a large memory, the clock's hand
    /// passes over a part only.
    pub(crate) fn evict_clean(&self) {
        let mut sweep = Sweep::new(MOST_OFFERED);
        for _ in 0..(ROUNDS * self.frames.count()).min(PART) {
            self.sweep_frame(self.frames.advance(), &mut sweep);
            if sweep.victims.len() >= self.batch {
                break;
            }
        }
        self.provider.offer(&sweep.dirty);
        // Pages that the kernel does not unmap stay where they are.
        let _ = self.release(&mut sweep.victims);
    }

    /// Evicts up to a batch of clean pages, unless another thread frees a frame meanwhile. Returns false if no page is clean and
    /// unused. The provider is told of the dirty pages on the way.
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

    /// Evicts a batch, and returns the number of its pages. It fails only if there are none.
    fn evict(&self) -> Result<usize> {
        let mut sweep = Sweep::new(self.batch);
        // In the first rounds, all pages may have been used.
        for _ in 0..ROUNDS * self.frames.count() {
            self.sweep_frame(self.frames.advance(), &mut sweep);
            if sweep.victims.len() + sweep.dirty.len() >= self.batch {
                break;
            }
        }
        let mut evicted = self.release(&mut sweep.victims)?;
        if !sweep.dirty.is_empty() {
            let dirty = std::mem::take(&mut sweep.dirty);
            // Pages that other threads hold stay in this list. Pages that were written leave it, and are clean now.
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
