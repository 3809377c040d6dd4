//! The decisions of a pool about the next reads and their times, from its members' paces and the chunks that they miss.

use std::sync::atomic::Ordering::Relaxed;

use super::super::device::Device;
use super::super::loads::{Order, Owner};
use super::super::member::Member;
use super::super::rates::{ahead, reward};
use super::{Frame, LEAST, MOST, Pool};
use crate::board::UNIT;
use crate::memory::FRAME;

impl Pool {
    /// The average pace of the members that keep up with the stream, or of all members if none does.
    pub(super) fn pace(&self) -> Option<f64> {
        let of = |derailed: bool| {
            let rates =
                self.members.values().filter(|member| (member.passed >= self.chunks.len()) == derailed);
            let rates: Vec<f64> = rates.filter_map(|member| member.ingest.per_second()).collect();
            (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
        };
        of(false).or_else(|| of(true))
    }

    /// Whether one member is at most half as fast as another, and still misses chunks.
    fn somebody_lags(&self) -> bool {
        let missing = |member: &&Member| member.seen.count() < self.chunks.len();
        let rates = || self.members.values().filter(missing).filter_map(|member| member.ingest.per_second());
        2.0 * rates().fold(f64::INFINITY, f64::min) <= rates().fold(0.0, f64::max)
    }

    /// The number of chunks that may wait for the fastest member, the number of frames that may be in use, and the number of
    /// lanes.
    pub(super) fn marks(&self, device: &Device) -> (usize, usize, usize) {
        let most = self.state.len();
        let (Some(pace), Some(speed)) = (self.pace(), device.rate.per_second()) else { return (2, most, 2) };
        let latency = (FRAME as f64 / speed * 1e9) as u64;
        let high = ahead(FRAME as u64, latency, pace, 2).clamp(2, most);
        // This is β·3Δ, plus the pages that members may hold. Chunks that a slow member loses must be read again for it, so its
        // pool uses all its memory first.
        let enough = ahead(FRAME as u64, latency, pace, 3) + self.members.len() * self.pages_held;
        let capacity = if self.somebody_lags() { most } else { enough };
        (high, capacity.clamp(LEAST.min(most), most), reward(speed, pace, MOST.min(most)))
    }

    /// Orders the reads that are due.
    pub(super) fn release(&mut self, now: u64, device: &Device, orders: &mut Vec<Order>) {
        let (high, capacity, lanes) = self.marks(device);
        // Frames in use beyond the capacity stay until they are read, because paces are estimates that rise and fall.
        self.capacity = capacity.max(self.capacity.min(self.state.len() - self.free.len()));
        for member in self.members.values() {
            member.board.service().watermark.store(high as u64, Relaxed);
        }
        self.allowed += lanes.saturating_sub(self.allowed + self.flying + self.resting);
        while self.flying < MOST && !device.is_full() {
            let Some(chunk) = self.next_needed(high) else { break };
            // The stream serves the member that has least, as long as that member keeps up with it.
            let needs = self.members.values().filter(|m| !m.seen.has(chunk) && m.is_hungry(high));
            let least = needs.map(Member::unread).min().unwrap_or(0);
            let starving = least == 0 && self.flying == 0;
            if !starving && (self.allowed == 0 || least + self.flying >= high) {
                break;
            }
            let Some(frame) = self.frame(self.capacity, now) else { break };
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
                // This is the smallest page size, because a worker with any page size may join during the read.
                page: UNIT,
            });
        }
        self.peak = self.peak.max(self.state.len() - self.free.len());
    }

    /// The next absent chunk of the stream that a hungry member needs. A member that has enough does not delay those after it.
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

    /// Moves the head to a chunk. A member that the head has passed for a whole round has had its round.
    fn advance(&mut self, chunk: usize) {
        let count = self.chunks.len();
        let step = (chunk + count - self.head) % count + 1;
        self.head = (chunk + 1) % count;
        for member in self.members.values_mut() {
            member.passed = member.passed.saturating_add(step);
        }
    }
}
