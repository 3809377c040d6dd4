//! A pool: frames with a window of chunks that slides over a group of files, shared by the workers that scan them
//! (SKzicIO, paper 4).
//!
//! Life of a frame: free → loading → shared (it counts who has it) → free. A frame is free again when
//! nobody has it and nobody who scans needs it any more, or when it is wanted for another chunk after it expired.
//! What the paper maps into a worker's page table is an entry of its board here, so nothing is unmapped or flushed.
//!
//! The paper lets one channel read for all and hands that role on; here the control loop reads for the pool itself, so no
//! worker is special, and none is missed. All of this is the loop's own and needs no locks.
//!
//! Invariants: a frame's count is the number of members that have it in a slot. A frame is loaded into only while it is in
//! `Loading`, when nobody has it. A chunk is in at most one frame whose content is current, and `present` says which are.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::bits::Bits;
use super::board::{Board, Closed, Fault, Want};
use super::device::Device;
use super::files::Files;
use super::loads::{Loaded, Order, Owner};
use super::member::Member;
use super::rates::{TICK, ahead, release_delay, reward};
use super::stream::Wishes;
use crate::memory::{FRAME, Frames};
use crate::plan::{Chunk, Plan};
use crate::source::Stamp;
use crate::{Error, Result};

#[cfg(test)]
#[path = "pool_check.rs"]
mod check;

/// Chunks that a pool reads at a time.
const MOST: usize = 8;
/// Frames that a pool has at least in use before it takes any back.
const LEAST: usize = 4;
/// Slow ticks without anything returned until members have to ring.
const IDLE: u32 = 16;
/// How old an unread chunk may become before its file is looked at, in nanoseconds.
const AGE: u64 = 1_000_000_000;

enum Frame {
    Free,
    Loading,
    Shared(Shared),
}

struct Shared {
    chunk: usize,
    members: usize,
    expires: u64,
    stamps: Vec<(u32, Stamp)>,
    /// Its file has not changed since it was read.
    current: bool,
}

/// A pool.
pub struct Pool {
    id: usize,
    pub files: Rc<Files>,
    pub frames: Arc<Frames>,
    pub memory: usize,
    chunks: Vec<Chunk>,
    state: Vec<Frame>,
    free: Vec<usize>,
    /// Chunks that are shared, or on their way.
    present: Bits,
    /// The next chunk of the stream.
    head: usize,
    members: BTreeMap<usize, Member>,
    /// Errors to be told, to members that had no room for them.
    faults: VecDeque<(usize, Fault)>,
    flying: usize,
    allowed: usize,
    resting: usize,
    idle: u32,
    aged_at: u64,
    pub armed: Option<u64>,
    /// The most frames that were in use.
    pub peak: usize,
    /// Nobody can join any more.
    pub closing: bool,
}

impl Pool {
    /// With nothing in it.
    pub fn new(
        id: usize,
        files: Rc<Files>,
        frames: Arc<Frames>,
        memory: usize,
        mut plan: Plan,
        now: u64,
    ) -> Self {
        let chunks: Vec<Chunk> = std::iter::from_fn(|| plan.next_chunk()).collect();
        let count = frames.count();
        Self {
            id,
            files,
            frames,
            memory,
            present: Bits::new(chunks.len()),
            chunks,
            state: (0..count).map(|_| Frame::Free).collect(),
            // The lowest first: those have been used before.
            free: (0..count).rev().collect(),
            head: 0,
            members: BTreeMap::new(),
            faults: VecDeque::new(),
            flying: 0,
            allowed: 2,
            resting: 0,
            idle: 0,
            aged_at: now,
            armed: None,
            peak: 0,
            closing: false,
        }
    }

    /// Whether nothing is being loaded and nobody is there.
    pub fn is_down(&self) -> bool {
        self.flying == 0 && self.members.is_empty()
    }

    /// The device that it reads from.
    pub fn device(&self) -> u64 {
        let chunk = self.chunks.get(self.head).or(self.chunks.first());
        chunk.and_then(|chunk| chunk.parts.first()).map_or(0, |part| self.files.device(part.segment.file))
    }

    /// A worker comes. What is in the pool is its, if it is still what the files are.
    ///
    /// # Errors
    /// There are as many members as there can be: all but a few frames could be in their hands.
    pub fn join(&mut self, id: usize, board: Arc<Board>, now: u64) -> Result<()> {
        if self.members.len() + LEAST > self.state.len() {
            let (members, frames) = (self.members.len(), self.state.len());
            return Err(Error::Invalid(format!(
                "{members} workers share the pool, and its {frames} frames are for no more"
            )));
        }
        self.check_age(now, true);
        self.members.insert(id, Member::new(board, self.chunks.len()));
        self.idle = 0;
        Ok(())
    }

    /// The service ends.
    pub fn expel(&mut self) {
        while let Some((_, member)) = self.members.pop_first() {
            member.leave(Closed::Gone, |_| {});
        }
    }

    /// A worker is gone.
    pub fn leave(&mut self, id: usize) {
        self.remove(id, Closed::Gone);
    }

    fn remove(&mut self, id: usize, why: Closed) {
        if let Some(member) = self.members.remove(&id) {
            let state = &mut self.state;
            member.leave(why, |frame| release(state, frame));
        }
    }

    /// Workers that do not keep to the rules are sent away, with nothing.
    fn police(&mut self) {
        let broken = self.members.iter().filter(|(_, member)| !member.keeps_the_rules());
        let broken: Vec<usize> = broken.map(|(id, _)| *id).collect();
        broken.into_iter().for_each(|id| self.remove(id, Closed::Broken));
    }

    /// How many members there are, and how many frames they have or will have.
    pub fn count(&self) -> (u64, u64) {
        let held = |frame: &&Frame| match frame {
            Frame::Free => false,
            Frame::Loading => true,
            Frame::Shared(shared) => shared.members > 0,
        };
        (self.members.len() as u64, self.state.iter().filter(held).count() as u64)
    }

    /// Looks at the boards and says what is to be done.
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
        if self.members.is_empty() || !working && self.faults.is_empty() {
            return wishes;
        }
        // The slow timer of the sharers (4.2.4): the loop looks every tick. Where nothing happens it lets itself be woken.
        let starves = self.members.values().any(|member| member.starves());
        let ticking = self.idle < IDLE || self.flying > 0 || self.resting > 0 || starves;
        let want = if ticking { Want::Starving } else { Want::Returned };
        self.members.values().for_each(|member| member.want(want));
        if self.harvest() || self.members.values().any(|member| member.starves() && member.unread() == 0) {
            self.share();
            self.release(now, device, &mut wishes.orders);
        }
        wishes.timer = Some(if ticking { now + TICK } else { now + AGE });
        wishes
    }

    fn harvest(&mut self) -> bool {
        let (mut any, state) = (false, &mut self.state);
        for member in self.members.values_mut() {
            any |= member.harvest(|frame| release(state, frame));
        }
        any
    }

    /// Pre-mapping: gives every member what it has not seen.
    fn share(&mut self) {
        for _ in 0..self.faults.len() {
            let Some((chunk, fault)) = self.faults.pop_front() else { break };
            let mut waits = false;
            for member in self.members.values_mut().filter(|member| !member.seen.has(chunk)) {
                if member.has_room() {
                    member.give(chunk, &self.chunks[chunk], Err(fault));
                } else {
                    waits = true;
                }
            }
            if waits {
                self.faults.push_back((chunk, fault));
            } else {
                self.present.clear(chunk);
            }
        }
        for (index, frame) in self.state.iter_mut().enumerate() {
            let Frame::Shared(shared) = frame else { continue };
            if !shared.current {
                continue;
            }
            for member in self.members.values_mut() {
                if !member.seen.has(shared.chunk) && member.has_room() {
                    member.give(shared.chunk, &self.chunks[shared.chunk], Ok(index));
                    shared.members += 1;
                }
            }
        }
    }

    /// How fast its members ingest on average: those that keep up with the stream, unless there are none.
    fn pace(&self) -> Option<f64> {
        let of = |derailed: bool| {
            let rates =
                self.members.values().filter(|member| (member.passed >= self.chunks.len()) == derailed);
            let rates: Vec<f64> = rates.filter_map(|member| member.ingest.per_second()).collect();
            (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
        };
        of(false).or_else(|| of(true))
    }

    /// How many chunks may wait for the fastest member; how many frames there may be in use; how many lanes.
    fn marks(&self, device: &Device) -> (usize, usize, usize) {
        let most = self.state.len();
        let (Some(pace), Some(speed)) = (self.pace(), device.rate.per_second()) else { return (2, most, 2) };
        let latency = (FRAME as f64 / speed * 1e9) as u64;
        let high = ahead(FRAME as u64, latency, pace, 2).clamp(2, most);
        // β·3Δ, and what members hold beside it: one chunk each.
        let capacity = ahead(FRAME as u64, latency, pace, 3) + self.members.len();
        (high, capacity.clamp(LEAST.min(most), most), reward(speed, pace, MOST.min(most)))
    }

    /// Orders what is due.
    fn release(&mut self, now: u64, device: &Device, orders: &mut Vec<Order>) {
        let (high, capacity, lanes) = self.marks(device);
        for member in self.members.values() {
            member.board.service().watermark.store(high as u64, Relaxed);
        }
        self.allowed += lanes.saturating_sub(self.allowed + self.flying + self.resting);
        while self.flying < MOST && !device.is_full() {
            let Some(chunk) = self.next_needed(high) else { break };
            // The member that has least is who the stream is for, as long as it keeps up with it.
            let needs = self.members.values().filter(|m| !m.seen.has(chunk) && m.is_hungry(high));
            let least = needs.map(Member::unread).min().unwrap_or(0);
            let starving = least == 0 && self.flying == 0;
            if !starving && (self.allowed == 0 || least + self.flying >= high) {
                break;
            }
            let Some(frame) = self.frame(capacity, now) else { break };
            self.allowed = self.allowed.saturating_sub(1);
            self.state[frame] = Frame::Loading;
            self.present.set(chunk);
            self.advance(chunk);
            self.flying += 1;
            orders.push(Order {
                owner: Owner::Pool { pool: self.id, chunk },
                files: self.files.clone(),
                chunk: self.chunks[chunk].clone(),
                memory: self.memory,
                frame,
            });
        }
        self.peak = self.peak.max(self.state.len() - self.free.len());
    }

    /// The next chunk of the stream that is not there, of those that a hungry member needs. A member that has enough does not
    /// hold up those behind it.
    fn next_needed(&self, high: usize) -> Option<usize> {
        let hungry: Vec<&Member> = self.members.values().filter(|member| member.is_hungry(high)).collect();
        let count = self.chunks.len();
        let mut at = self.head;
        for _ in 0..count {
            let distance = |chunk: usize| (chunk + count - at) % count;
            let needs = hungry.iter().filter_map(|member| member.seen.next_missing(at));
            let chunk = needs.min_by_key(|chunk| distance(*chunk))?;
            if !self.present.has(chunk) {
                return Some(chunk);
            }
            at = (chunk + 1) % count;
        }
        None
    }

    /// The head moves to a chunk: members that it passes, and comes back to, have had their round.
    fn advance(&mut self, chunk: usize) {
        let count = self.chunks.len();
        let step = (chunk + count - self.head) % count + 1;
        self.head = (chunk + 1) % count;
        for member in self.members.values_mut() {
            member.passed = member.passed.saturating_add(step);
        }
    }

    /// A frame to load into: a free one below the capacity, one that nobody needs, or one whose time is over.
    fn frame(&mut self, capacity: usize, now: u64) -> Option<usize> {
        self.recycle(|_| false);
        if self.state.len() - self.free.len() >= capacity || self.free.is_empty() {
            self.recycle(|shared| shared.expires <= now);
        }
        if self.state.len() - self.free.len() >= capacity {
            return None;
        }
        self.free.pop()
    }

    /// Frees frames that nobody has and nobody needs, and those that have expired unless a worker uses them right now.
    fn recycle(&mut self, expired: impl Fn(&Shared) -> bool) {
        for (index, frame) in self.state.iter_mut().enumerate() {
            let Frame::Shared(shared) = frame else { continue };
            let over = expired(shared) || !shared.current;
            if over && shared.members > 0 {
                let took = self
                    .members
                    .values_mut()
                    .filter_map(|member| member.reclaim(index).then_some(()))
                    .count();
                shared.members -= took;
            }
            let needed =
                shared.current && !over && self.members.values().any(|member| !member.seen.has(shared.chunk));
            if shared.members == 0 && !needed {
                if shared.current {
                    self.present.clear(shared.chunk);
                }
                *frame = Frame::Free;
                self.free.push(index);
            }
        }
    }

    /// A chunk is there, or will not be. When its lane may release the next one, if there is to be one.
    pub fn loaded(&mut self, loaded: Loaded, now: u64, device: &Device) -> Option<u64> {
        self.flying -= 1;
        let (Owner::Pool { chunk, .. }, index) = (loaded.order.owner, loaded.order.frame) else {
            unreachable!("the loop hands out loads by their owners")
        };
        match loaded.outcome {
            Ok(stamps) => {
                self.forget_older(&stamps);
                let tick = TICK.max(self.pace().map_or(0, |pace| (FRAME as f64 / pace * 1e9) as u64));
                let shared = Shared { chunk, members: 0, expires: now + 3 * tick, stamps, current: true };
                self.state[index] = Frame::Shared(shared);
            }
            Err(fault) => {
                self.state[index] = Frame::Free;
                self.free.push(index);
                self.faults.push_back((chunk, fault));
            }
        }
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

    /// A lane has rested.
    pub fn rested(&mut self) {
        self.resting -= 1;
        self.allowed += 1;
    }

    /// Every second, and when a worker joins: chunks of files that have changed since are not shared any more.
    fn check_age(&mut self, now: u64, force: bool) {
        if !force && now < self.aged_at + AGE {
            return;
        }
        self.aged_at = now;
        let mut files: Vec<u32> = Vec::new();
        for frame in &self.state {
            if let Frame::Shared(shared) = frame {
                files.extend(shared.stamps.iter().map(|(file, _)| *file));
            }
        }
        files.sort_unstable();
        files.dedup();
        let stamps: Vec<_> =
            files.iter().filter_map(|file| Some((*file, self.files.stamp(*file)?))).collect();
        self.forget_older(&stamps);
    }

    /// Does not share chunks any more, and takes them back from who has not begun them, whose files have another stamp now.
    fn forget_older(&mut self, stamps: &[(u32, Stamp)]) {
        let mut any = false;
        for frame in &mut self.state {
            let Frame::Shared(shared) = frame else { continue };
            let differs =
                |(file, old): &(u32, Stamp)| stamps.iter().any(|(other, new)| other == file && old != new);
            if shared.current && shared.stamps.iter().any(differs) {
                shared.current = false;
                self.present.clear(shared.chunk);
                any = true;
            }
        }
        if any {
            self.recycle(|_| false);
        }
    }
}

/// A member does not have a frame any more.
fn release(state: &mut [Frame], frame: usize) {
    if let Frame::Shared(shared) = &mut state[frame] {
        shared.members -= 1;
    }
}
