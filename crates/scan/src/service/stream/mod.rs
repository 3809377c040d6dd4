//! A private channel in the control loop: a ring of frames that is filled just in time (paper 3.4).
//!
//! Requests are released by *lanes*. A lane is a request in flight, or the permission for one. After its request completed, it
//! rests for the delay of Equation 1. There are as many lanes as needed reward requests. Two marks bound the unread pages. Below
//! the low mark the worker would wait, so requests are released at once. At the high mark no request is released, because the
//! worker does not need more yet. The published watermark is the high mark, or the number of unread pages that were released
//! under a higher one.
//!
//! The lanes and marks follow from the worker's pace (`pace`). `given` handles the worker's pages, which may become old.
//!
//! A chunk may be in any free slot, and in the frame with the same number. The board has the slot of each chunk
//! ([`set_turn`](crate::board::Entry::set_turn)). A worker may hold pages of old chunks for any time. Their slots are not free
//! meanwhile, and there are more slots than it may hold. `cancel` handles cancelled ranges.

mod cancel;
mod given;
mod pace;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::device::Device;
use super::files::Files;
use super::loads::{Loaded, Order, Outcome, Owner};
use super::rates::{Rate, release_delay};
use crate::board::{Audit, Board, Closed, Segment, State, Want};
use crate::memory::{FRAME, Frames};
use crate::plan::{Chunk, Plan, Range};

/// Number of chunks that a stream reads at a time before anything is known of its worker.
const FIRST: usize = 2;
/// Minimum number of chunks that may be ready or in flight, for the slowest worker. The loop does not know when a worker takes a
/// page. With one more than the next page, a read has the time of a page.
const LEAST: usize = 3;
/// Maximum number of chunks that a stream may read at a time.
const MOST: usize = 8;
/// Number of times that the loop checks for a worker that does not return its page, before it lets the worker ring.
const LOOKS: u32 = 6;

/// The content of a slot.
enum Slot {
    Free,
    /// A chunk that is being read into the slot.
    Loading(Turn),
    /// A chunk that belongs to the worker.
    Given {
        turn: Turn,
        chunk: Chunk,
        outcome: Outcome,
    },
}

/// The chunk of a slot.
struct Turn {
    number: u64,
    /// Number of times that it was taken back before.
    tries: u32,
    /// The parts that the worker will still get. Cancelled ranges are removed from them.
    wanted: Vec<Range>,
}

impl Turn {
    fn new(number: u64, chunk: &Chunk) -> Self {
        let wanted = chunk.parts.iter().map(|part| {
            let Segment { file, len, offset, .. } = part.segment;
            Range { file, start: offset, end: offset + u64::from(len) }
        });
        Self { number, tries: 0, wanted: wanted.collect() }
    }
}

/// A private channel's state in the loop.
pub struct Stream {
    id: usize,
    pub board: Arc<Board>,
    pub files: Rc<Files>,
    /// The memory that requests read into. It exists as long as this object.
    _frames: Arc<Frames>,
    pub memory: usize,
    device: u64,
    plan: Plan,
    ahead: Option<Chunk>,
    /// Recent size of a chunk, in bytes.
    unit: u64,
    slots: Vec<Slot>,
    audit: Audit,
    /// The number of the next chunk.
    next: u64,
    /// The slot after that of the last chunk.
    after: usize,
    ingest: Rate,
    harvested: (u64, u64),
    /// Number of lanes that may release now, that have a request in flight, and that rest.
    allowed: usize,
    flying: usize,
    resting: usize,
    /// The watermark. Pages that were released under it stay when the worker becomes slower. So it falls as they are read.
    watermark: usize,
    /// The time when the loop checks the board again even if nothing happens.
    look_at: Option<u64>,
    looks: u32,
    /// The time for which the loop has set a timer for it.
    pub armed: Option<u64>,
    aged_at: u64,
    /// Whether the worker is gone. Requests in flight still have to complete.
    pub closing: bool,
}

/// The requests of a stream to the loop.
pub struct Wishes {
    /// Loads to begin.
    pub orders: Vec<Order>,
    /// The latest time when it must be pumped.
    pub timer: Option<u64>,
}

/// However the stream ends, even by a panic of the service, the worker learns that nothing comes any more.
impl Drop for Stream {
    fn drop(&mut self) {
        self.board.close(Closed::Gone);
        super::wake(&self.board);
    }
}

impl Stream {
    /// Creates an empty stream. Its worker may have `pages_held` pages out. The maker of the plan sets the board's total.
    #[allow(clippy::too_many_arguments, reason = "each is another thing")]
    pub fn new(
        id: usize,
        board: Arc<Board>,
        files: Rc<Files>,
        frames: Arc<Frames>,
        memory: usize,
        plan: Plan,
        pages_held: usize,
        now: u64,
    ) -> Self {
        let slots = (0..frames.count()).map(|_| Slot::Free).collect();
        let audit = Audit::new(frames.count(), pages_held);
        Self {
            id,
            board,
            files,
            _frames: frames,
            memory,
            device: 0,
            plan,
            ahead: None,
            unit: FRAME as u64,
            slots,
            audit,
            next: 0,
            after: 0,
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

    /// Whether no chunk is being loaded for it.
    pub fn is_down(&self) -> bool {
        self.flying == 0
    }

    /// An empty slot, if there is one. If the worker returns frames in order, slots are used in order.
    fn free_slot(&self) -> Option<usize> {
        let count = self.slots.len();
        let slots = (0..count).map(|step| (self.after + step) % count);
        slots.into_iter().find(|slot| matches!(self.slots[*slot], Slot::Free))
    }

    fn state(&self, slot: usize) -> State {
        self.board.entries()[slot].word.state()
    }

    /// Publishes a lower bound of the number of chunks: those that have begun, and one more if there are more. So the worker
    /// knows whether the scan is over, and chunks of ranges that may be cancelled are not counted.
    pub fn publish_total(&mut self) {
        let more = u64::from(self.peek().is_some());
        self.board.service().total.store(self.next + more, Release);
    }

    /// Checks the board and decides what the loop must do.
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
            // The worker may have acted before it could see the announcement.
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

    /// Whether the worker breaks the rules. If so, nothing is read for it any more.
    fn is_broken(&mut self) -> bool {
        let broken = !self.audit.is_kept(&self.board);
        if broken {
            self.closing = true;
            self.board.close(Closed::Broken);
            super::wake(&self.board);
        }
        broken
    }

    /// Takes back the chunks that the worker has finished, and measures its pace. Returns whether there were any.
    fn harvest(&mut self) -> bool {
        let mut any = false;
        for (slot, content) in self.slots.iter_mut().enumerate() {
            if matches!(content, Slot::Given { .. }) && self.board.entries()[slot].word.recycle() {
                *content = Slot::Free;
                self.audit.take_back(slot);
                any = true;
            }
        }
        let words = self.board.worker();
        let now = (words.bytes.load(Relaxed), words.ingest_ns.load(Relaxed));
        let (bytes, ns) = (now.0.wrapping_sub(self.harvested.0), now.1.wrapping_sub(self.harvested.1));
        if bytes != 0 {
            self.ingest.sample(bytes, ns);
            self.harvested = now;
        }
        if any {
            self.looks = 0;
            self.look_at = None;
        }
        any
    }

    /// Orders the reads that are due.
    fn release(&mut self, now: u64, device: &Device, orders: &mut Vec<Order>) {
        let (low, high, lanes) = self.marks(now, device);
        self.watermark = high.max(self.watermark.min(self.pending()));
        self.board.service().watermark.store(self.watermark as u64, Relaxed);
        let missing = lanes.saturating_sub(self.allowed + self.flying + self.resting);
        self.allowed += missing;
        let before = self.next;
        while self.flying < MOST && !device.is_full() {
            let pending = self.pending();
            if self.peek().is_none() || pending >= high || pending >= low && self.allowed == 0 {
                break;
            }
            let Some(slot) = self.free_slot() else { break };
            let Some(chunk) = self.ahead.take() else { break };
            self.unit = chunk.bytes();
            self.allowed = self.allowed.saturating_sub(1);
            self.slots[slot] = Slot::Loading(Turn::new(self.next, &chunk));
            self.after = (slot + 1) % self.slots.len();
            let turns = self.board.entries();
            turns[(self.next % turns.len() as u64) as usize].set_turn(self.next, slot);
            self.order(slot, self.next, chunk, orders);
            self.next += 1;
        }
        if self.next != before {
            self.publish_total();
        }
    }

    /// The next chunk to release.
    fn peek(&mut self) -> Option<&Chunk> {
        if self.ahead.is_none() {
            self.ahead = self.plan.next_chunk();
        }
        self.ahead.as_ref()
    }

    fn order(&mut self, slot: usize, number: u64, chunk: Chunk, orders: &mut Vec<Order>) {
        self.flying += 1;
        orders.push(Order {
            owner: Owner::Stream { stream: self.id, number },
            files: self.files.clone(),
            chunk,
            memory: self.memory,
            frame: slot,
            page: self.plan.page_size(),
        });
    }

    /// Takes a loaded chunk, or the end of a failed load. Returns the time when its lane may release the next one, if it may.
    pub fn loaded(&mut self, loaded: Loaded, now: u64, device: &Device) -> Option<u64> {
        self.flying -= 1;
        let slot = loaded.order.frame;
        let service = self.board.service();
        service.bytes_read.fetch_add(loaded.bytes_read, Relaxed);
        service.read_again.fetch_add(loaded.again.into(), Relaxed);
        if self.closing {
            return None;
        }
        let bytes = loaded.order.chunk.bytes();
        let Slot::Loading(turn) = std::mem::replace(&mut self.slots[slot], Slot::Free) else {
            unreachable!("what was ordered is not given yet")
        };
        self.give(slot, turn, loaded.order.chunk, loaded.outcome);
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

    /// Ends the rest of a lane.
    pub fn rested(&mut self) {
        self.resting -= 1;
        self.allowed += 1;
    }
}
