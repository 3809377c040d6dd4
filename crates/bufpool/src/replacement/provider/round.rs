//! A round of the provider: from a wake-up until enough frames are free.
//!
//! The clock's hand passes over frames, as for a thread that evicts by itself. Clean victims are released in batches. Dirty pages
//! are written in the background, and evicted after their writes unless they were used meanwhile.
//!
//! A batch of writes that is not full is filled with dirty pages ahead of the hand that no use keeps in memory. So these are
//! clean when any thread's sweep reaches them. With a double-write area, they fill all free regions, because all regions share an
//! fsync.

use super::Marks;
use super::signals::{Outcome, Signals};
use crate::buffer::TOGETHER;
use crate::durability::background_writer::{BackgroundWriter, Ended};
use crate::error::Result;
use crate::page::PageId;
use crate::pool::Core;
use crate::protocol::frame_table::FrameId;
use crate::protocol::sweep;
use crate::replacement::evict::Sweep;
use crate::replacement::usage_count::ROUNDS;

/// Number of frames that the hand passes before the provider looks at writes that have ended.
const PART: usize = 1 << 12;
/// Maximum number of victims at a time. So waiting threads get the first frames early.
const MOST_VICTIMS: usize = 256;
/// The fraction of the frames ahead of the hand whose dirty pages may fill a batch, as a divisor, and the maximum number of
/// frames.
const AHEAD_PART: usize = 8;
const MOST_AHEAD: usize = 1 << 12;

/// A thread of the provider.
pub(super) struct Worker<'c> {
    core: &'c Core,
    signals: &'c Signals,
    marks: Marks,
    writer: BackgroundWriter<'c>,
    /// Whether this round has freed frames.
    progress: bool,
}

impl<'c> Worker<'c> {
    pub fn new(core: &'c Core, signals: &'c Signals, marks: Marks) -> Self {
        Self { core, signals, marks, writer: BackgroundWriter::new(core), progress: false }
    }

    /// Frees frames. No write is in flight when this returns.
    pub fn round(&mut self) -> Outcome {
        self.progress = false;
        let result = self.free_frames();
        // The pages of writes that end now are evicted as long as too few frames are free. Their errors are not lost: the pages
        // stay dirty, and the next round or flush writes them again.
        while self.writer.pages_in_flight() > 0 {
            for ended in self.writer.reap(true) {
                let _ = self.settle(ended);
            }
        }
        match result {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed { error, progress: self.progress },
        }
    }

    fn free_frames(&mut self) -> Result<Outcome> {
        let all = ROUNDS * self.core.frames.count();
        // Number of frames that the hand has passed since it found something.
        let mut passed_in_vain = 0;
        while self.signals.may_work() {
            let coming = self.free_count() + self.writer.pages_in_flight();
            let mut wait = true;
            if coming < self.marks.high && self.writer.room() > 0 {
                let (passed, found) = self.sweep(self.marks.high - coming)?;
                passed_in_vain = if found { 0 } else { passed_in_vain + passed };
                wait = passed_in_vain >= all;
            }
            if self.writer.pages_in_flight() == 0 {
                if self.free_count() >= self.marks.high {
                    return Ok(Outcome::Enough);
                }
                if passed_in_vain >= all {
                    return Ok(Outcome::Nothing);
                }
            }
            let ended = self.writer.reap(wait);
            self.settle_all(ended)?;
        }
        Ok(Outcome::Interrupted)
    }

    /// Whether fewer frames are free than the low-water mark.
    pub fn is_short(&self) -> bool {
        self.free_count() < self.marks.low
    }

    fn free_count(&self) -> usize {
        self.core.engine.free_count(&self.core.frames)
    }

    /// Passes the hand over some frames, evicts the clean victims among them, and begins to write the dirty ones. Returns the
    /// number of frames that the hand passed, and whether there was any victim.
    fn sweep(&mut self, wanted: usize) -> Result<(usize, bool)> {
        let wanted = wanted.min(MOST_VICTIMS);
        let mut sweep = Sweep::new(MOST_VICTIMS);
        sweep.dirty = self.signals.take_offered(wanted);
        sweep.dirty.retain(|frame| self.is_soon_victim(*frame));
        let mut passed = 0;
        while passed < PART && sweep.victims.len() + sweep.dirty.len() < wanted {
            self.core.sweep_frame(self.core.frames.advance(), &mut sweep);
            passed += 1;
        }
        let released = self.release(&mut sweep)?;
        let in_flight = self.writer.pages_in_flight();
        let ended = self.write(sweep.dirty);
        self.settle_all(ended)?;
        // The hand counts as having moved even if nothing can be written.
        Ok((passed.max(1), released || self.writer.pages_in_flight() > in_flight))
    }

    fn release(&mut self, sweep: &mut Sweep) -> Result<bool> {
        let released = self.core.release(&mut sweep.victims)? > 0;
        if released {
            self.progress = true;
            self.signals.freed();
        }
        Ok(released)
    }

    /// Begins to write the dirty pages of frames, and of some frames ahead of the hand.
    fn write(&mut self, mut dirty: Vec<FrameId>) -> Vec<Ended> {
        if dirty.is_empty() {
            return Vec::new();
        }
        let core = self.core;
        let room = self.writer.room();
        let batches =
            if core.store.double.is_some() { room } else { dirty.len().div_ceil(TOGETHER).min(room) };
        let more = (batches * TOGETHER).saturating_sub(dirty.len());
        let ahead = (core.frames.count() / AHEAD_PART).min(MOST_AHEAD);
        dirty.extend(core.frames.ahead(ahead).filter(|frame| self.is_soon_victim(*frame)).take(more));
        self.writer.begin(&mut dirty)
    }

    /// Whether the hand would find a dirty page that no use keeps in memory.
    fn is_soon_victim(&self, frame: FrameId) -> bool {
        let core = self.core;
        let state = |page| core.engine.state_of(frame, PageId(page));
        core.usage.is_zero(frame) && sweep::is_cold_and_dirty(&core.frames, frame, state)
    }

    /// Evicts the pages of batches that have been written. Returns the first error if too few frames are free and no batch freed
    /// any.
    fn settle_all(&mut self, all: Vec<Ended>) -> Result<()> {
        let (mut has_released, mut result) = (false, Ok(()));
        for ended in all {
            match self.settle(ended) {
                Ok(released) => has_released |= released,
                Err(error) => result = result.and(Err(error)),
            }
        }
        if has_released { Ok(()) } else { result }
    }

    /// Evicts the pages of a batch that has been written, up to the number of frames that are needed. Returns whether that freed
    /// a frame. It fails if frames are needed and the batch, whose write failed, freed none.
    fn settle(&mut self, ended: Ended) -> Result<bool> {
        let missing = self.marks.high.saturating_sub(self.free_count());
        let mut sweep = Sweep::new(0);
        for frame in ended.frames {
            if sweep.victims.len() >= missing {
                break;
            }
            self.core.sweep_frame(frame, &mut sweep);
        }
        let released = self.release(&mut sweep)?;
        if released || missing == 0 { Ok(released) } else { ended.result.map(|()| false) }
    }
}
