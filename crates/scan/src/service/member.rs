//! A worker of a pool in the control loop: the chunks that it was given, and those that it has now.

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

/// A chunk that a member was given, and its frame.
#[derive(Clone, Debug)]
pub struct Given {
    pub chunk: usize,
    pub frame: usize,
    /// The faults that the member knows.
    faults: Option<Rc<Faults>>,
}

/// The reason why a frame is taken back.
#[derive(Clone, Copy)]
pub enum Why<'a> {
    /// The frame has expired.
    Expired,
    /// The files of this chunk have changed, and their parts of it are lost.
    Old(&'a Chunk, &'a Option<Rc<Faults>>),
}

/// A worker of a pool.
pub struct Member {
    pub board: Arc<Board>,
    /// The local bit vector: chunks that the member was given and that were not taken back.
    pub seen: Bits,
    /// Number of chunks that the stream passed since this member joined. After a round the member is derailed.
    pub passed: usize,
    slots: Vec<Option<Given>>,
    audit: Audit,
    /// The slot after the one that was filled last.
    next: usize,
    /// The worker's count of starvations when a chunk was taken back from it.
    paused: Option<u64>,
    pub ingest: Rate,
    harvested: (u64, u64),
    /// Number of times that each chunk was taken back because it was old, of chunks that the member did not get since.
    tries: BTreeMap<usize, u32>,
}

/// However the membership ends, even by a panic of the service, the worker learns that nothing comes any more. An earlier reason
/// stays.
impl Drop for Member {
    fn drop(&mut self) {
        self.board.close(Closed::Gone);
        super::wake(&self.board);
    }
}

impl Member {
    /// Creates a member that was given nothing, and may have `pages_held` pages out.
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

    /// Takes back the chunks that the worker has finished. Calls `release` with their frames. Returns whether there were any.
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

    /// Whether chunks should be read for it: it has fewer than `high` unread chunks. If some were taken back, it must also have
    /// shown since then that it still runs. Chunks that a stopped worker has not used are not read for it repeatedly.
    pub fn is_hungry(&self, high: usize) -> bool {
        let rests = self.paused == Some(self.board.worker().starved.load(Relaxed)) && !self.starves();
        !rests && self.unread() < high
    }

    /// Number of chunks that it has and has not begun.
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

    /// The next slot that is free. The worker may keep other slots for any time.
    fn free_slot(&self) -> Option<usize> {
        let count = self.slots.len();
        (0..count).map(|step| (self.next + step) % count).find(|slot| self.slots[*slot].is_none())
    }

    /// Gives it a chunk in a frame. It must have room.
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

    /// Forceful reclaim (4.2.3): takes back a frame that the worker has not begun to use. Returns whether the member lost the
    /// frame. If the chunk was old too often, the member keeps it with errors for the lost parts, because the file may change
    /// forever.
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
            // Only watched files ever become old.
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

    /// Takes back all chunks, because the worker is gone or must go.
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

    /// Sets the event for which the worker must ring.
    pub fn want(&self, want: Want) {
        self.board.worker().bell.want(want);
    }
}
