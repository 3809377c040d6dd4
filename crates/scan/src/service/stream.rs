//! A private channel, as the service has it: a ring of frames that is filled just in time (paper 3.4).
//!
//! Requests are released by *lanes*. A lane is a request in flight, or the permission for one: after its request completed
//! it rests for the delay of Equation 1. There are as many lanes as reward requests are needed. Two marks bound them:
//! below the low one the worker would wait, so requests are released at once; at the watermark none is, for the
//! worker does not need more yet.
//!
//! Chunk number `n` is in slot and frame `n % slots`. `oldest ≤ next`, and they are at most the number of slots apart: what
//! is between them is being loaded, ready, in use, or done and not harvested.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::device::Device;
use super::files::Files;
use super::loads::{Loaded, Order, Owner};
use super::rates::{Rate, TICK, ahead, release_delay, reward};
use crate::board::{Audit, Board, Closed, Fault, State, Want};
use crate::memory::{FRAME, Frames};
use crate::plan::{Chunk, Plan};
use crate::source::Stamp;

/// Chunks that a stream reads at a time before anything is known of its worker.
const FIRST: usize = 2;
/// Chunks that a stream may read at a time.
const MOST: usize = 8;
/// How often the loop looks for a worker that does not return its page, before it lets it ring.
const LOOKS: u32 = 6;
/// How old an unread page may become before its file is looked at, in nanoseconds.
const AGE: u64 = 1_000_000_000;

/// What is in a slot.
enum Slot {
    Free,
    /// How often it was taken back before.
    Loading {
        tries: u32,
    },
    /// The worker's, with what it was loaded from.
    Given {
        chunk: Chunk,
        stamps: Vec<(u32, Stamp)>,
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

    /// Whether a load shows that one of its files has changed since others of its chunks were loaded.
    pub fn is_news(&self, loaded: &Loaded) -> bool {
        let Ok(stamps) = &loaded.outcome else { return false };
        let differs = |slot: &Slot| match slot {
            Slot::Given { stamps: old, .. } => old
                .iter()
                .any(|(file, stamp)| stamps.iter().any(|(other, new)| other == file && new != stamp)),
            _ => false,
        };
        self.slots.iter().any(differs)
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
            let news = self.harvest() || want == Want::Starving && self.starving();
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

    /// How fast the worker is now: as it was lately, or slower if it has had a page for too long.
    fn pace(&self, now: u64) -> Option<f64> {
        let rate = self.ingest.per_second()?;
        let words = self.board.worker();
        let unread = self.oldest < self.next
            && self.board.entries()[self.slot(self.oldest)].word.state() != State::Empty;
        let since = match words.first_access_ns.load(Relaxed) {
            0 => words.returned_ns.load(Relaxed),
            since => since,
        };
        if !unread || since >= now {
            return Some(rate);
        }
        Some(rate.min(self.unit as f64 * 1e9 / (now - since) as f64))
    }

    /// Chunks on their way or unread.
    fn pending(&self) -> usize {
        let current = self.slot(self.oldest);
        let in_use = self.oldest < self.next && self.board.entries()[current].word.state() == State::InUse;
        (self.next - self.oldest) as usize - usize::from(in_use)
    }

    fn starving(&self) -> bool {
        self.board.service().sleeper.word().load(Relaxed) != 0
    }

    /// Below how many chunks the worker would wait; how many are enough; how many lanes there should be.
    fn marks(&self, now: u64, device: &Device) -> (usize, usize, usize) {
        let (slots, bytes) = (self.slots.len(), self.unit);
        let Some(pace) = self.pace(now) else { return (FIRST, 2 * FIRST.min(slots), FIRST) };
        let Some(speed) = device.rate.per_second() else { return (FIRST, 2 * FIRST.min(slots), FIRST) };
        let latency = (bytes as f64 / speed * 1e9) as u64;
        let high = ahead(bytes, latency, pace, 2).clamp(2, slots);
        let low = ahead(bytes, latency, pace, 0).min(high - 1);
        (low, high, reward(speed, pace, MOST.min(slots)))
    }

    /// Orders what is due.
    fn release(&mut self, now: u64, device: &Device, orders: &mut Vec<Order>) {
        let (low, high, lanes) = self.marks(now, device);
        self.board.service().watermark.store(high as u64, Relaxed);
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
        });
    }

    /// What the worker has to tell, and when the loop looks again by itself.
    fn sleep(&mut self, now: u64, device: &Device) -> (Want, Option<u64>) {
        let age = (self.oldest < self.next).then_some(self.aged_at + AGE);
        // At the end of the plan, or with as much in flight as may be: the next completion sees to it.
        if self.peek().is_none() || self.flying >= MOST || device.is_full() {
            return (Want::Nothing, age);
        }
        // Held back on purpose. What flies or rests brings the loop back, but a worker that has nothing to read knows better.
        if self.flying > 0 || self.resting > 0 {
            return (Want::Starving, age);
        }
        let (want, look) = self.wait_for_return(now);
        (want, [look, age].into_iter().flatten().min())
    }

    /// The worker has enough: the loop looks when it should have returned a page, a few times, and then lets it ring.
    fn wait_for_return(&mut self, now: u64) -> (Want, Option<u64>) {
        if self.look_at.is_some_and(|time| time > now) {
            return (Want::Starving, self.look_at);
        }
        let Some(pace) = self.ingest.per_second().filter(|_| self.looks < LOOKS) else {
            self.look_at = None;
            return (Want::Returned, None);
        };
        let interval = (self.unit as f64 / pace * 1e9) as u64;
        // When the page should be back; then soon after, and more and more patiently.
        let pause = if self.looks == 0 { interval } else { (interval >> 4) << self.looks };
        // Not much more often than the slow timers tick.
        let time = now + pause.max(TICK / 4);
        self.looks += 1;
        self.look_at = Some(time);
        (Want::Starving, self.look_at)
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
        self.give(slot, loaded.order.chunk, loaded.outcome);
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

    fn give(&mut self, slot: usize, chunk: Chunk, outcome: Result<Vec<(u32, Stamp)>, Fault>) {
        let entry = &self.board.entries()[slot];
        let stamps = match outcome {
            Ok(stamps) => {
                for (words, part) in self.board.segments(slot).iter().zip(&chunk.parts) {
                    words.set(part.segment);
                }
                entry.describe(slot as u32, chunk.parts.len() as u32);
                stamps
            }
            Err(fault) => {
                entry.describe_fault(fault);
                Vec::new()
            }
        };
        let tries = match self.slots[slot] {
            Slot::Loading { tries } => tries,
            _ => 0,
        };
        self.slots[slot] = Slot::Given { chunk, stamps, tries };
        self.audit.give(slot);
        entry.word.publish();
        super::wake(&self.board);
    }

    /// Takes back unread pages of files that have changed since, to read them again; every second, and whenever a load saw
    /// a new stamp.
    pub fn check_age(&mut self, now: u64, force: bool, orders: &mut Vec<Order>) {
        const TRIES: u32 = 8;
        if self.closing || !force && now < self.aged_at + AGE {
            return;
        }
        self.aged_at = now;
        let mut seen: Vec<(u32, Option<Stamp>)> = Vec::new();
        for number in self.oldest..self.next {
            let slot = self.slot(number);
            let Slot::Given { stamps, tries, .. } = &self.slots[slot] else { continue };
            let old = stamps.iter().any(|(file, stamp)| {
                let now = match seen.iter().find(|(known, _)| known == file) {
                    Some((_, now)) => *now,
                    None => {
                        let now = self.files.stamp(*file);
                        seen.push((*file, now));
                        now
                    }
                };
                now.as_ref() != Some(stamp)
            });
            if !old || *tries >= TRIES || !self.board.entries()[slot].word.reclaim() {
                continue;
            }
            self.audit.take_back(slot);
            self.board.service().reclaimed.fetch_add(1, Relaxed);
            let loading = Slot::Loading { tries: *tries + 1 };
            if let Slot::Given { chunk, .. } = std::mem::replace(&mut self.slots[slot], loading) {
                self.order(number, chunk, orders);
            }
        }
    }
}
