//! A worker of a pool, as the service has it: which chunks it was given, and which of them it has now.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::bits::Bits;
use super::board::{Audit, Board, Closed, Fault, State, Want};
use super::rates::Rate;
use crate::plan::Chunk;

/// A chunk that a member was given, in a frame or as an error.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub chunk: usize,
    pub frame: Option<usize>,
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
    next: usize,
    /// How often the worker had starved when something was taken back from it.
    paused: Option<u64>,
    pub ingest: Rate,
    harvested: (u64, u64),
}

impl Member {
    /// One that was given nothing.
    pub fn new(board: Arc<Board>, chunks: usize) -> Self {
        let slots = vec![None; board.entries().len()];
        let audit = Audit::new(slots.len());
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
                if let Some(Given { frame: Some(frame), .. }) = given.take() {
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
        self.slots[self.next].is_none()
    }

    /// Gives it a chunk in a frame, or an error in its place.
    pub fn give(&mut self, number: usize, chunk: &Chunk, content: Result<usize, Fault>) {
        let slot = self.next;
        self.next = (slot + 1) % self.slots.len();
        let entry = &self.board.entries()[slot];
        match content {
            Ok(frame) => {
                for (words, part) in self.board.segments(slot).iter().zip(&chunk.parts) {
                    words.set(part.segment);
                }
                entry.describe(frame as u32, chunk.parts.len() as u32);
            }
            Err(fault) => entry.describe_fault(fault),
        }
        self.slots[slot] = Some(Given { chunk: number, frame: content.ok() });
        self.seen.set(number);
        self.audit.give(slot);
        entry.word.publish();
        super::wake(&self.board);
    }

    /// Forceful reclaim (4.2.3): takes back a frame that the worker has not begun to use. Whether it had it so.
    pub fn reclaim(&mut self, frame: usize) -> bool {
        for (slot, given) in self.slots.iter_mut().enumerate() {
            let Some(Given { chunk, frame: Some(its) }) = *given else { continue };
            if its == frame && self.board.entries()[slot].word.reclaim() {
                *given = None;
                self.audit.take_back(slot);
                self.seen.clear(chunk);
                self.paused = Some(self.board.worker().starved.load(Relaxed));
                self.board.service().reclaimed.fetch_add(1, Relaxed);
                return true;
            }
        }
        false
    }

    /// Everything that it has: its worker is gone, or to go.
    pub fn leave(self, why: Closed, mut release: impl FnMut(usize)) {
        self.board.close(why);
        super::wake(&self.board);
        self.slots.iter().flatten().filter_map(|given| given.frame).for_each(&mut release);
    }

    /// What it has.
    #[cfg(test)]
    pub fn given(&self) -> impl Iterator<Item = Given> {
        self.slots.iter().flatten().copied()
    }

    /// Whether its worker waits.
    pub fn starves(&self) -> bool {
        self.board.service().sleeper.word().load(Relaxed) != 0
    }

    /// What the worker is to tell.
    pub fn want(&self, want: Want) {
        self.board.worker().bell.want(want);
    }
}
