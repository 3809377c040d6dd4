//! A worker of a pool, as the service has it: which chunks it was given, and which of them it has now.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::TRIES;
use super::board::{Audit, Board, Closed, Faults, State, Want};
use super::loads::{Outcome, Reading};
use super::publish::publish;
use super::rates::Rate;
use crate::bits::Bits;
use crate::plan::Chunk;

/// A chunk that a member was given, and the frame that it is in.
#[derive(Clone, Debug)]
pub struct Given {
    pub chunk: usize,
    pub frame: usize,
    /// What the member knows to be missing of it.
    faults: Option<Rc<Faults>>,
}

/// Why a frame is taken back.
#[derive(Clone, Copy)]
pub enum Why<'a> {
    /// Its time is over.
    Expired,
    /// Its files have changed: it is this chunk, and what it has of them is lost.
    Old(&'a Chunk, &'a Option<Rc<Faults>>),
}

/// A worker of a pool.
pub struct Member {
    pub board: Arc<Board>,
    /// The local bit vector: chunks that it was given and that were not taken back.
    pub seen: Bits,
    /// Chunks that the stream passed since this member joined; after a round it is derailed.
    pub passed: usize,
    slots: Vec<Option<Given>>,
    audit: Audit,
    /// The slot after the one that was filled last.
    next: usize,
    /// How often the worker had starved when something was taken back from it.
    paused: Option<u64>,
    pub ingest: Rate,
    harvested: (u64, u64),
    /// How often chunks were taken back from it because they were old; of those that it did not get since.
    tries: BTreeMap<usize, u32>,
}

/// However its membership ends, also if its service panics: the worker is told that nothing comes any more. A reason that was given
/// before stays.
impl Drop for Member {
    fn drop(&mut self) {
        self.board.close(Closed::Gone);
        super::wake(&self.board);
    }
}

impl Member {
    /// One that was given nothing, and may have so many pages out.
    pub fn new(board: Arc<Board>, chunks: usize, pages_held: usize) -> Self {
        let slots = vec![None; board.entries().len()];
        let audit = Audit::new(slots.len(), pages_held);
        Self {
            board,
            seen: Bits::new(chunks),
            passed: 0,
            slots,
            audit,
            next: 0,
            paused: None,
            ingest: Rate::default(),
            harvested: (0, 0),
            tries: BTreeMap::new(),
        }
    }

    /// Whether the worker keeps to the rules.
    pub fn keeps_the_rules(&self) -> bool {
        self.audit.is_kept(&self.board)
    }

    /// Takes back what the worker is through with: `release` is told the frames. Whether there was anything.
    pub fn harvest(&mut self, mut release: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (slot, given) in self.slots.iter_mut().enumerate() {
            if given.is_some() && self.board.entries()[slot].word.recycle() {
                any = true;
                self.audit.take_back(slot);
                if let Some(Given { chunk, frame, .. }) = given.take() {
                    self.tries.remove(&chunk);
                    release(frame);
                }
            }
        }
        if any {
            self.paused = None;
        }
        let words = self.board.worker();
        let now = (words.bytes.load(Relaxed), words.ingest_ns.load(Relaxed));
        let bytes = now.0.wrapping_sub(self.harvested.0);
        if bytes != 0 {
            self.ingest.sample(bytes, now.1.wrapping_sub(self.harvested.1));
            self.harvested = now;
        }
        any
    }

    /// Whether anything is to be read on its behalf: it has fewer than so many chunks unread, and if some were taken back from
    /// it, it has shown since that it is still there. What a worker that stopped has not used is not read for it again and again.
    pub fn is_hungry(&self, high: usize) -> bool {
        let rests = self.paused == Some(self.board.worker().starved.load(Relaxed)) && !self.starves();
        !rests && self.unread() < high
    }

    /// Chunks that it has and has not begun.
    pub fn unread(&self) -> usize {
        let ready = |(slot, given): (usize, &Option<Given>)| {
            given.is_some() && self.board.entries()[slot].word.state() == State::Ready
        };
        self.slots.iter().enumerate().filter(|item| ready((item.0, item.1))).count()
    }

    /// Whether another chunk can be given to it.
    pub fn has_room(&self) -> bool {
        self.free_slot().is_some()
    }

    /// The next slot that is free. The worker may keep others for as long as it likes.
    fn free_slot(&self) -> Option<usize> {
        let count = self.slots.len();
        (0..count).map(|step| (self.next + step) % count).find(|slot| self.slots[*slot].is_none())
    }

    /// Gives it a chunk in a frame. There must be room.
    pub fn give(&mut self, number: usize, chunk: &Chunk, frame: usize, outcome: &Outcome) {
        let slot = self.free_slot().expect("there is room");
        self.next = (slot + 1) % self.slots.len();
        self.seen.set(number);
        let given = Given { chunk: number, frame, faults: outcome.faults.clone() };
        self.put(slot, chunk, given, outcome.reading.as_deref());
    }

    fn put(&mut self, slot: usize, chunk: &Chunk, given: Given, reading: Option<&Reading>) {
        let Given { frame, faults, .. } = self.slots[slot].insert(given);
        publish(&self.board, &mut self.audit, slot, *frame, chunk, faults.as_deref(), reading);
    }

    /// Forceful reclaim (4.2.3): takes back a frame that the worker has not begun to use. Whether it had it so, and has it no
    /// more. What was old too often it keeps, with errors in the place of what is lost: that may go on for ever.
    pub fn reclaim(&mut self, frame: usize, why: Why<'_>) -> bool {
        let of_frame = |given: &Option<Given>| given.as_ref().is_some_and(|given| given.frame == frame);
        let Some(slot) = self.slots.iter().position(of_frame) else { return false };
        let Some(given) = &self.slots[slot] else { return false };
        let number = given.chunk;
        let tries = self.tries.get(&number).copied().unwrap_or(0);
        let keeps = match why {
            Why::Old(chunk, faults) if tries >= TRIES => {
                let known = given.faults.as_ref().zip(faults.as_ref()).is_some_and(|(a, b)| Rc::ptr_eq(a, b));
                if known {
                    return false;
                }
                Some((chunk, faults.clone()))
            }
            _ => None,
        };
        if !self.board.entries()[slot].word.reclaim() {
            return false;
        }
        self.audit.take_back(slot);
        self.board.service().reclaimed.fetch_add(1, Relaxed);
        if let Some((chunk, faults)) = keeps {
            // Only watched files are ever out of date.
            self.put(slot, chunk, Given { chunk: number, frame, faults }, None);
            return false;
        }
        self.slots[slot] = None;
        self.seen.clear(number);
        self.paused = Some(self.board.worker().starved.load(Relaxed));
        if let Why::Old(..) = why {
            self.tries.insert(number, tries + 1);
        }
        true
    }

    /// Everything that it has: its worker is gone, or to go.
    pub fn leave(self, why: Closed, mut release: impl FnMut(usize)) {
        self.board.close(why);
        self.slots.iter().flatten().for_each(|given| release(given.frame));
    }

    /// The pages that the member has.
    #[cfg(test)]
    pub fn given(&self) -> impl Iterator<Item = &Given> {
        self.slots.iter().flatten()
    }

    /// Whether its worker waits or polls in vain.
    pub fn starves(&self) -> bool {
        self.board.service().sleeper.starves()
    }

    /// What the worker is to tell.
    pub fn want(&self, want: Want) {
        self.board.worker().bell.want(want);
    }
}
