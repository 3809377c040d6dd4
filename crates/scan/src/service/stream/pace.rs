//! The pace of a stream's worker. It determines how many pages must be ready, and when the loop checks again.

use std::sync::atomic::Ordering::Relaxed;

use super::{FIRST, LEAST, LOOKS, MOST, Slot, Stream};
use crate::board::{State, Want};
use crate::service::AGE;
use crate::service::device::Device;
use crate::service::rates::{TICK, ahead, reward};

impl Stream {
    /// The current pace of the worker: its recent average, or slower if it has had a page for too long.
    pub(super) fn pace(&self, now: u64) -> Option<f64> {
        let rate = self.ingest.per_second()?;
        let words = self.board.worker();
        let has_some = self.slots.iter().any(|slot| matches!(slot, Slot::Given { .. }));
        let since = match words.first_access_ns.load(Relaxed) {
            0 => words.returned_ns.load(Relaxed),
            since => since,
        };
        if !has_some || since >= now {
            return Some(rate);
        }
        Some(rate.min(self.unit as f64 * 1e9 / (now - since) as f64))
    }

    /// Number of chunks that are in flight or unread.
    pub(super) fn pending(&self) -> usize {
        let is_pending = |(slot, content): &(usize, &Slot)| match content {
            Slot::Free => false,
            Slot::Loading(_) => true,
            Slot::Given { .. } => self.state(*slot) == State::Ready,
        };
        self.slots.iter().enumerate().filter(is_pending).count()
    }

    /// Whether the worker has, or will have, any page that may become old.
    fn may_age(&self) -> bool {
        self.files.are_watched() && !self.slots.iter().all(|slot| matches!(slot, Slot::Free))
    }

    /// Whether the worker waits or polls in vain.
    pub(super) fn starves(&self) -> bool {
        self.board.service().sleeper.starves()
    }

    /// The number of chunks below which the worker would wait, the number that is enough, and the number of lanes.
    pub(super) fn marks(&self, now: u64, device: &Device) -> (usize, usize, usize) {
        let (slots, bytes) = (self.slots.len(), self.unit);
        let Some(pace) = self.pace(now) else { return (FIRST, 2 * FIRST.min(slots), FIRST) };
        let Some(speed) = device.rate.per_second() else { return (FIRST, 2 * FIRST.min(slots), FIRST) };
        let latency = (bytes as f64 / speed * 1e9) as u64;
        let high = ahead(bytes, latency, pace, 2).max(LEAST).min(slots);
        let low = ahead(bytes, latency, pace, 0).min(high - 1);
        (low, high, reward(speed, pace, MOST.min(slots)))
    }

    /// The event for which the worker must ring, and the time when the loop checks again by itself.
    pub(super) fn sleep(&mut self, now: u64, device: &Device) -> (Want, Option<u64>) {
        let age = self.may_age().then_some(self.aged_at + AGE);
        // At the end of the plan, or with the maximum number in flight, the next completion handles it.
        if self.peek().is_none() || self.flying >= MOST || device.is_full() {
            return (Want::Nothing, age);
        }
        // Chunks are held back on purpose. A request in flight or a resting lane wakes the loop, but a worker with nothing to
        // read must wake it earlier.
        if self.flying > 0 || self.resting > 0 {
            return (Want::Starving, age);
        }
        let (want, look) = self.wait_for_return(now);
        (want, [look, age].into_iter().flatten().min())
    }

    /// The worker has enough. The loop checks at the time when a page should be returned, a few times, and then lets the worker
    /// ring.
    fn wait_for_return(&mut self, now: u64) -> (Want, Option<u64>) {
        if self.look_at.is_some_and(|time| time > now) {
            return (Want::Starving, self.look_at);
        }
        let Some(pace) = self.ingest.per_second().filter(|_| self.looks < LOOKS) else {
            self.look_at = None;
            return (Want::Returned, None);
        };
        let interval = (self.unit as f64 / pace * 1e9) as u64;
        // The first check is when the page should be returned, the second soon after, and later ones at growing intervals.
        let pause = if self.looks == 0 { interval } else { (interval >> 4) << self.looks };
        // The checks are not much more frequent than the ticks of the slow timers.
        let time = now + pause.max(TICK / 4);
        self.looks += 1;
        self.look_at = Some(time);
        (Want::Starving, self.look_at)
    }
}
