//! A private channel, as the service has it: a ring of frames that is filled just in time (paper 3.4).
//!
//! Requests are released by *lanes*. A lane is a request in flight, or the permission for one: after its request completed
//! it rests for the delay of Equation 1. There are as many lanes as reward requests are needed. Two marks bound them:
//! below the low one the worker would wait, so requests are released at once; at the high one none is, for the worker does not
//! need more yet. The watermark that is published is the high mark, or what was released under a higher one and is not read.
//!
//! How fast that is follows from the worker's pace (`pace`); what the worker has, and may be old by now, is in `given`.
//!
//! Chunk number `n` is in slot and frame `n % slots`. `oldest ≤ next`, and they are at most the number of slots apart: what
//! is between them is being loaded, ready, in use, or done and not harvested.

mod given;
mod pace;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::device::Device;
use super::files::Files;
use super::loads::{Loaded, Order, Outcome, Owner};
use super::rates::{Rate, release_delay};
use crate::board::{Audit, Board, Closed, Want};
use crate::memory::{FRAME, Frames};
use crate::plan::{Chunk, Plan};

/// Chunks that a stream reads at a time before anything is known of its worker.
const FIRST: usize = 2;
/// Chunks that may be there or on their way for the slowest worker. The loop does not know when a worker takes a page: one
/// more than the next has the time of a page to come in.
const LEAST: usize = 3;
/// Chunks that a stream may read at a time.
const MOST: usize = 8;
/// How often the loop looks for a worker that does not return its page, before it lets it ring.
const LOOKS: u32 = 6;

/// What is in a slot.
enum Slot {
    Free,
    /// How often it was taken back before.
    Loading {
        tries: u32,
    },
    /// The worker's.
    Given {
        chunk: Chunk,
        outcome: Outcome,
        tries: u32,
    },
}

/// Where a stream's data goes.
pub struct Stream {
    id: usize,
    pub board: Arc<Board>,
    pub files: Rc<Files>,
    pub frames: Arc<Frames>,
    pub memory: usize,
    device: u64,
    plan: Plan,
    ahead: Option<Chunk>,
    /// Bytes of a chunk, as they are lately.
    unit: u64,
    slots: Vec<Slot>,
    audit: Audit,
    oldest: u64,
    next: u64,
    ingest: Rate,
    harvested: (u64, u64),
    /// Lanes that may release now; that have a request in flight; that rest.
    allowed: usize,
    flying: usize,
    resting: usize,
    /// The watermark. What was released under it does not go away when the worker turns out to be slower, so it comes down
    /// as that is read.
    watermark: usize,
    /// When the loop looks at the board again though nothing happened.
    look_at: Option<u64>,
    looks: u32,
    /// For when the loop has a timer of it.
    pub armed: Option<u64>,
    aged_at: u64,
    /// The worker is gone; what flies has to come down.
    pub closing: bool,
}

/// What a stream wants of the loop.
pub struct Wishes {
    /// Loads to begin.
    pub orders: Vec<Order>,
    /// When it wants to be pumped at the latest.
    pub timer: Option<u64>,
}

/// However the stream ends, also if its service panics: the worker is told that nothing comes any more.
impl Drop for Stream {
    fn drop(&mut self) {
        self.board.close(Closed::Gone);
        super::wake(&self.board);
    }
}

impl Stream {
    /// With nothing in it. The board's total is set by who makes the plan.
    pub fn new(
        id: usize,
        board: Arc<Board>,
        files: Rc<Files>,
        frames: Arc<Frames>,
        memory: usize,
        plan: Plan,
        now: u64,
    ) -> Self {
        let slots = (0..frames.count()).map(|_| Slot::Free).collect();
        let audit = Audit::new(frames.count());
        Self {
            id,
            board,
            files,
            frames,
            memory,
            device: 0,
            plan,
            ahead: None,
            unit: FRAME as u64,
            slots,
            audit,
            oldest: 0,
            next: 0,
            ingest: Rate::default(),
            harvested: (0, 0),
            allowed: FIRST,
            flying: 0,
            resting: 0,
            watermark: 0,
            look_at: None,
            looks: 0,
            armed: None,
            aged_at: now,
            closing: false,
        }
    }

    /// The plan, to add ranges to.
    pub fn plan(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// The device that it will read from next, or read from last.
    pub fn device(&mut self) -> u64 {
        if let Some(part) = self.peek().and_then(|chunk| chunk.parts.first()) {
            let file = part.segment.file;
            self.device = self.files.device(file);
        }
        self.device
    }

    /// Whether nothing is being loaded for it.
    pub fn is_down(&self) -> bool {
        self.flying == 0
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.slots.len() as u64) as usize
    }

    /// Looks at the board and says what is to be done.
    pub fn pump(&mut self, now: u64, device: &Device) -> Wishes {
        let mut wishes = Wishes { orders: Vec::new(), timer: None };
        if self.closing || self.is_broken() {
            return wishes;
        }
        self.harvest();
        self.release(now, device, &mut wishes.orders);
        loop {
            let (want, timer) = self.sleep(now, device);
            self.board.worker().bell.want(want);
            // What the worker did before it could see what is wanted.
            let news = self.harvest() || want == Want::Starving && self.starves();
            if !news {
                wishes.timer = timer;
                break;
            }
            let before = wishes.orders.len();
            self.release(now, device, &mut wishes.orders);
            if wishes.orders.len() == before && want != Want::Returned {
                wishes.timer = timer;
                break;
            }
        }
        wishes
    }

    /// Whether the worker does not keep to the rules. Then nothing is read for it any more.
    fn is_broken(&mut self) -> bool {
        let broken = !self.audit.is_kept(&self.board);
        if broken {
            self.closing = true;
            self.board.close(Closed::Broken);
            super::wake(&self.board);
        }
        broken
    }

    /// Takes back what the worker is through with, and learns its pace. Whether there was anything.
    fn harvest(&mut self) -> bool {
        let before = self.oldest;
        while self.oldest < self.next {
            let slot = self.slot(self.oldest);
            if !matches!(self.slots[slot], Slot::Given { .. }) || !self.board.entries()[slot].word.recycle() {
                break;
            }
            self.slots[slot] = Slot::Free;
            self.audit.take_back(slot);
            self.oldest += 1;
        }
        let words = self.board.worker();
        let now = (words.bytes.load(Relaxed), words.ingest_ns.load(Relaxed));
        let (bytes, ns) = (now.0.wrapping_sub(self.harvested.0), now.1.wrapping_sub(self.harvested.1));
        if bytes != 0 {
            self.ingest.sample(bytes, ns);
            self.harvested = now;
        }
        if before != self.oldest {
            self.looks = 0;
            self.look_at = None;
        }
        before != self.oldest
    }

    /// Orders what is due.
    fn release(&mut self, now: u64, device: &Device, orders: &mut Vec<Order>) {
        let (low, high, lanes) = self.marks(now, device);
        self.watermark = high.max(self.watermark.min(self.pending()));
        self.board.service().watermark.store(self.watermark as u64, Relaxed);
        let missing = lanes.saturating_sub(self.allowed + self.flying + self.resting);
        self.allowed += missing;
        while self.next - self.oldest < self.slots.len() as u64 && self.flying < MOST && !device.is_full() {
            let pending = self.pending();
            if self.peek().is_none() || pending >= high || pending >= low && self.allowed == 0 {
                break;
            }
            let Some(chunk) = self.ahead.take() else { break };
            self.unit = chunk.bytes();
            self.allowed = self.allowed.saturating_sub(1);
            let slot = self.slot(self.next);
            self.slots[slot] = Slot::Loading { tries: 0 };
            self.order(self.next, chunk, orders);
            self.next += 1;
        }
    }

    /// The next chunk to release.
    fn peek(&mut self) -> Option<&Chunk> {
        if self.ahead.is_none() {
            self.ahead = self.plan.next_chunk();
        }
        self.ahead.as_ref()
    }

    fn order(&mut self, number: u64, chunk: Chunk, orders: &mut Vec<Order>) {
        self.flying += 1;
        orders.push(Order {
            owner: Owner::Stream { stream: self.id, number },
            files: self.files.clone(),
            chunk,
            memory: self.memory,
            frame: self.slot(number),
            page: self.plan.page_size(),
        });
    }

    /// A chunk is there, or will not be. When its lane may release the next one, if there is to be one.
    pub fn loaded(&mut self, loaded: Loaded, now: u64, device: &Device) -> Option<u64> {
        self.flying -= 1;
        let Owner::Stream { number, .. } = loaded.order.owner else {
            unreachable!("the loop hands out loads by their owners")
        };
        let slot = self.slot(number);
        let service = self.board.service();
        service.bytes_read.fetch_add(loaded.bytes_read, Relaxed);
        service.read_again.fetch_add(loaded.again.into(), Relaxed);
        if self.closing {
            return None;
        }
        let bytes = loaded.order.chunk.bytes();
        let Slot::Loading { tries } = self.slots[slot] else {
            unreachable!("what was ordered is not given yet")
        };
        self.give(slot, loaded.order.chunk, loaded.outcome, tries);
        let (_, _, lanes) = self.marks(now, device);
        if self.allowed + self.flying + self.resting >= lanes {
            return None;
        }
        self.resting += 1;
        let delay = match (device.rate.per_second(), self.pace(now)) {
            (Some(speed), Some(pace)) => release_delay(bytes, speed, pace, lanes),
            _ => 0,
        };
        Some(now + delay)
    }

    /// A lane has rested.
    pub fn rested(&mut self) {
        self.resting -= 1;
        self.allowed += 1;
    }
}
