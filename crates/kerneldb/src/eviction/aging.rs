//! Passes over the keys in which their usage ages, a few pieces at a time.

use std::time::{Duration, Instant};

use rand::{RngExt, rngs::SmallRng};

use super::usage;
use crate::{
    engine::{EvictionPolicy, EvictionSource, thread_time},
    layout::{KDB_USAGE_COUNT, KDB_USAGE_IDLE},
};

/// A pass begins at most this often.
const INTERVAL: Duration = Duration::from_millis(100);
/// Part of a processor that aging may take.
const TIME_SHARE: u32 = 100;
/// The same while the usage of all keys is set anew.
const RESET_TIME_SHARE: u32 = 2;
/// Time without aging for which the processor time is made up later.
const CREDIT_TIME: Duration = Duration::from_millis(100);

/// The position of the present pass, and the processor time that it may take.
pub(super) struct Aging {
    started: Instant,
    /// Processor time that may be used now, and when that was computed.
    credit: Duration,
    credited: Instant,
    /// When the pass began, and the next partition and piece.
    began: Instant,
    at: (usize, u64),
    /// The pass gives all keys the usage of a new key, because the usage has another meaning now.
    is_reset: bool,
    /// By partition and piece: when the usage of the keys aged last, in milliseconds since `started`.
    aged_ms: Vec<Vec<u64>>,
}

impl Aging {
    pub(super) fn new() -> Aging {
        let now = Instant::now();
        Aging {
            started: now,
            credit: Duration::ZERO,
            credited: now,
            began: now,
            at: (0, 0),
            is_reset: false,
            aged_ms: Vec::new(),
        }
    }

    /// Begins a pass that gives all keys the usage of a new key.
    pub(super) fn reset(&mut self) {
        (self.is_reset, self.at) = (true, (0, 0));
    }

    /// Goes on with the pass over the keys of all partitions, within its part of a processor.
    pub(super) fn advance(
        &mut self,
        sources: &[&dyn EvictionSource],
        policy: EvictionPolicy,
        decay_minutes: u32,
        random: &mut SmallRng,
    ) {
        let kind = policy.usage_kind();
        let (now, cpu_start) = (Instant::now(), thread_time());
        let share = if self.is_reset { RESET_TIME_SHARE } else { TIME_SHARE };
        self.credit = (self.credit + (now - self.credited) / share).min(CREDIT_TIME / share);
        self.credited = now;
        if !matches!(kind, KDB_USAGE_IDLE | KDB_USAGE_COUNT) {
            self.is_reset = false;
            return;
        }
        if self.at == (0, 0) {
            if self.began.elapsed() < INTERVAL && !self.is_reset {
                return;
            }
            self.began = now;
        }
        let new = if kind == KDB_USAGE_COUNT { usage::NEW_COUNT } else { 0 };
        let now_ms = (now - self.started).as_millis() as u64;
        self.aged_ms.resize(sources.len(), Vec::new());
        while thread_time() - cpu_start < self.credit {
            let (partition, piece) = self.at;
            let Some(source) = sources.get(partition) else {
                (self.at, self.is_reset) = ((0, 0), false);
                break;
            };
            if piece >= source.pieces() {
                self.at = (partition + 1, 0);
                continue;
            }
            let aged_ms = &mut self.aged_ms[partition];
            if aged_ms.len() <= piece as usize {
                aged_ms.resize(piece as usize + 1, now_ms);
            }
            let ms = now_ms - std::mem::replace(&mut aged_ms[piece as usize], now_ms);
            let is_reset = self.is_reset;
            source.update_usage(piece, &mut |before| match kind {
                _ if is_reset => new,
                KDB_USAGE_IDLE => usage::grow_idle(before, ms, random.random()),
                _ => usage::decay_count(before, ms, decay_minutes, random.random()),
            });
            self.at = (partition, piece + 1);
        }
        self.credit = self.credit.saturating_sub(thread_time() - cpu_start);
    }
}
