//! A pool: frames with a window of chunks that slides over a group of files, shared by the workers that scan them
//! (SKzicIO, paper 4).
//!
//! Life of a frame: free → loading → shared (it counts the members that have it) → free. A frame becomes free when no member has
//! it and no scanning member needs it any more. An expired frame also becomes free when another chunk needs a frame. The paper
//! maps a frame into a worker's page table. Here a frame is an entry of the worker's board, so nothing is unmapped or flushed.
//!
//! In the paper, one channel reads for all and passes that role on. Here the control loop reads for the pool itself, so no worker
//! is special, and none is needed. All of this belongs to the loop and needs no locks.
//!
//! Invariants: a frame's count is the number of members that have it in a slot. A frame is loaded into only while it is in
//! `Loading`, when no member has it. A chunk is in at most one frame whose content is current, and `present` says which are.

#[cfg(test)]
mod check;
mod flow;
mod frames;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::AGE;
use super::board::{Board, Closed, Want};
use super::device::Device;
use super::files::Files;
use super::loads::{Loaded, Outcome, Owner};
use super::member::Member;
use super::rates::{TICK, release_delay};
use super::stream::Wishes;
use crate::bits::Bits;
use crate::memory::{FRAME, Frames};
use crate::plan::Chunk;
use crate::{Error, Result};

/// Maximum number of chunks that a pool reads at a time.
const MOST: usize = 8;
/// Minimum number of frames in use before a pool takes any back.
pub const LEAST: usize = crate::limits::POOL_SPARE_FRAMES + 1;
/// Number of slow ticks without a returned page after which members have to ring.
const IDLE: u32 = 16;

enum Frame {
    Free,
    Loading,
    Shared(Shared),
}

struct Shared {
    chunk: usize,
    members: usize,
    expires: u64,
    outcome: Outcome,
    /// Whether its files have not changed since it was read.
    current: bool,
}

/// A pool.
pub struct Pool {
    id: usize,
    pub files: Rc<Files>,
    /// The memory that requests read into. It exists as long as this object.
    _frames: Arc<Frames>,
    pub memory: usize,
    chunks: Vec<Chunk>,
    state: Vec<Frame>,
    free: Vec<usize>,
    /// Chunks that are shared, or in flight.
    present: Bits,
    /// The next chunk of the stream.
    head: usize,
    members: BTreeMap<usize, Member>,
    /// Number of frames that may be in use.
    capacity: usize,
    flying: usize,
    allowed: usize,
    resting: usize,
    idle: u32,
    aged_at: u64,
    pub armed: Option<u64>,
    /// Maximum number of frames that were in use.
    pub peak: usize,
    /// Whether no worker can join any more.
    pub closing: bool,
    /// Number of pages that each member may have out at a time, in as many frames.
    pages_held: usize,
}

impl Pool {
    /// Creates an empty pool. Each member may have `pages_held` pages out.
    pub fn new(
        id: usize,
        files: Rc<Files>,
        frames: Arc<Frames>,
        memory: usize,
        chunks: Vec<Chunk>,
        pages_held: usize,
        now: u64,
    ) -> Self {
        let count = frames.count();
        Self {
            id,
            files,
            _frames: frames,
            memory,
            present: Bits::new(chunks.len()),
            chunks,
            state: (0..count).map(|_| Frame::Free).collect(),
            // The lowest come first, because they have been used before.
            free: (0..count).rev().collect(),
            head: 0,
            members: BTreeMap::new(),
            capacity: 0,
            flying: 0,
            allowed: 2,
            resting: 0,
            idle: 0,
            aged_at: now,
            armed: None,
            peak: 0,
            closing: false,
            pages_held,
        }
    }

    /// Whether no chunk is being loaded and the pool has no member.
    pub fn is_down(&self) -> bool {
        self.flying == 0 && self.members.is_empty()
    }

    /// The device that it reads from.
    pub fn device(&self) -> u64 {
        let chunk = self.chunks.get(self.head).or(self.chunks.first());
        chunk.and_then(|chunk| chunk.parts.first()).map_or(0, |part| self.files.device(part.segment.file))
    }

    /// Adds a worker. It gets the chunks in the pool that are still current. Chunks with unreadable parts are read again.
    ///
    /// # Errors
    /// The pool has the maximum number of members: with more, all but a few frames could be held by them.
    pub fn join(&mut self, id: usize, board: Arc<Board>, now: u64) -> Result<()> {
        if (self.members.len() + 1) * self.pages_held + LEAST > self.state.len() + 1 {
            let (members, frames) = (self.members.len(), self.state.len());
            return Err(Error::Invalid(format!(
                "{members} workers share the pool, and its {frames} frames are for no more"
            )));
        }
        self.check_age(now, true);
        self.try_again();
        self.members.insert(id, Member::new(board, self.chunks.len(), self.pages_held));
        self.idle = 0;
        Ok(())
    }

    /// Removes all members, because the service ends.
    pub fn expel(&mut self) {
        while let Some((_, member)) = self.members.pop_first() {
            member.leave(Closed::Gone, |_| {});
        }
    }

    /// Removes a worker that is gone.
    pub fn leave(&mut self, id: usize) {
        self.remove(id, Closed::Gone);
    }

    fn remove(&mut self, id: usize, why: Closed) {
        if let Some(member) = self.members.remove(&id) {
            let state = &mut self.state;
            member.leave(why, |frame| release(state, frame));
        }
    }

    /// Removes workers that break the rules.
    fn police(&mut self) {
        let broken = self.members.iter().filter(|(_, member)| !member.keeps_the_rules());
        let broken: Vec<usize> = broken.map(|(id, _)| *id).collect();
        broken.into_iter().for_each(|id| self.remove(id, Closed::Broken));
    }

    /// Whether the pool has no worker and can get none. No worker needs its requests in flight then.
    pub fn is_deserted(&self) -> bool {
        self.closing && self.members.is_empty()
    }

    /// Number of members, and number of frames that they have or will have.
    pub fn count(&self) -> (u64, u64) {
        let held = |frame: &&Frame| match frame {
            Frame::Free => false,
            Frame::Loading => true,
            Frame::Shared(shared) => shared.members > 0,
        };
        (self.members.len() as u64, self.state.iter().filter(held).count() as u64)
    }

    /// Checks the boards and decides what the loop must do.
    pub fn pump(&mut self, now: u64, device: &Device) -> Wishes {
        let mut wishes = Wishes { orders: Vec::new(), timer: None };
        self.police();
        if self.harvest() {
            self.idle = 0;
        } else if self.armed.is_none() {
            self.idle = self.idle.saturating_add(1);
        }
        self.check_age(now, false);
        self.share();
        self.release(now, device, &mut wishes.orders);
        let working = self
            .members
            .values()
            .any(|member| member.seen.count() < self.chunks.len() || member.unread() > 0);
        if self.members.is_empty() || !working {
            return wishes;
        }
        // This is the slow timer of the sharers (4.2.4): the loop checks every tick. If nothing happens, the pool waits to be
        // woken.
        let starves = self.members.values().any(|member| member.starves());
        let ticking = self.idle < IDLE || self.flying > 0 || self.resting > 0 || starves;
        let want = if ticking { Want::Starving } else { Want::Returned };
        self.members.values().for_each(|member| member.want(want));
        if self.harvest() || self.members.values().any(|member| member.starves() && member.unread() == 0) {
            self.share();
            self.release(now, device, &mut wishes.orders);
        }
        wishes.timer = Some(if ticking { now + TICK } else { self.aged_at + AGE });
        wishes
    }

    fn harvest(&mut self) -> bool {
        let (mut any, state) = (false, &mut self.state);
        for member in self.members.values_mut() {
            any |= member.harvest(|frame| release(state, frame));
        }
        any
    }

    /// Takes a loaded chunk, with its faults. Returns the time when its lane may release the next one, if it may.
    pub fn loaded(&mut self, loaded: Loaded, now: u64, device: &Device) -> Option<u64> {
        self.flying -= 1;
        let (Owner::Pool { chunk, .. }, index) = (loaded.order.owner, loaded.order.frame) else {
            unreachable!("the loop hands out loads by their owners")
        };
        let outcome = loaded.outcome;
        self.forget_older(&outcome.stamps);
        let tick = TICK.max(self.pace().map_or(0, |pace| (FRAME as f64 / pace * 1e9) as u64));
        let shared = Shared { chunk, members: 0, expires: now + 3 * tick, outcome, current: true };
        self.state[index] = Frame::Shared(shared);
        self.share();
        let (_, _, lanes) = self.marks(device);
        if self.allowed + self.flying + self.resting >= lanes {
            return None;
        }
        self.resting += 1;
        let delay = match (device.rate.per_second(), self.pace()) {
            (Some(speed), Some(pace)) => release_delay(FRAME as u64, speed, pace, lanes),
            _ => 0,
        };
        Some(now + delay)
    }

    /// Ends the rest of a lane.
    pub fn rested(&mut self) {
        self.resting -= 1;
        self.allowed += 1;
    }
}

/// Records that a member does not have a frame any more.
fn release(state: &mut [Frame], frame: usize) {
    if let Frame::Shared(shared) = &mut state[frame] {
        shared.members -= 1;
    }
}
