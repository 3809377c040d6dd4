//! The thread of eviction: keeps memory free, answers writers, and lets the usage of keys age.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::{
    choice::{Sample, score},
    pending::Pending,
    usage,
};
use crate::{
    Error, Result, Session, Written,
    engine::{Candidate, Engine, EvictionPolicy, EvictionSource, thread_time, unix_ms},
    layout::{KDB_SLAB_BYTES, KDB_USAGE_COUNT, KDB_USAGE_IDLE},
    limits::EVICTION_FREE_SHARE,
};

/// The thread looks at the memory this often while little of it is free.
const SHORT_PERIOD: Duration = Duration::from_millis(10);
/// The same otherwise.
const LONG_PERIOD: Duration = Duration::from_millis(100);
/// The usage of a key ages at most this often.
const AGING_INTERVAL: Duration = Duration::from_millis(100);
/// Share of a processor that aging may take.
const AGING_TIME_SHARE: u32 = 100;
/// Pieces that are drawn for a sample. Keys that were written together are in the same pieces, so a sample needs many.
const SAMPLE_PIECES: usize = 64;
/// Keys of each piece in a sample.
const SAMPLE_KEYS: u64 = 32;
/// The smallest share of the memory from which keys are chosen: a smaller one would need more reading for each key.
const LEAST_SHARE: f64 = 1.0 / 64.0;
/// Bytes that are evicted for a writer without memory: a share of the partition, within bounds.
const STEP_SHARE: u64 = 64;
const STEP_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=4 << 20;

/// After all keys were read and too few could be evicted, the next search begins after a pause: at least this one, and one in
/// proportion to the time that the search has taken.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
const EXHAUSTED_PAUSE_FACTOR: u32 = 20;

/// A key that was chosen.
struct Victim {
    key: Vec<u8>,
    commit_ts: u64,
    bytes: u64,
}

/// The keys of a partition, and the thread's position in them.
struct Partition<'db> {
    source: Box<dyn EvictionSource + 'db>,
    /// The next piece from which keys are evicted.
    cursor: u64,
    pending: Pending,
    /// Until this time there is nothing to evict: all keys were read, and the policy allowed too few.
    exhausted_until: Option<Instant>,
    /// When the usage of each piece's keys aged last, in milliseconds since the thread's start.
    aged_ms: Vec<u64>,
}

/// The state of the thread.
pub(super) struct Worker<'db> {
    db: &'db Engine,
    session: Session,
    partitions: Vec<Partition<'db>>,
    random: SmallRng,
    started: Instant,
    /// The current pass of aging: when it began, and the next partition and piece.
    pass_began: Instant,
    pass_at: (usize, u64),
}

impl<'db> Worker<'db> {
    pub(super) fn new(db: &'db Engine, session: Session, seed: u64) -> Worker<'db> {
        let partition = |index| Partition {
            source: db.eviction_source(index),
            cursor: 0,
            pending: Pending::default(),
            exhausted_until: None,
            aged_ms: Vec::new(),
        };
        let now = Instant::now();
        Worker {
            db,
            session,
            partitions: (0..db.partitions()).map(partition).collect(),
            random: SmallRng::seed_from_u64(seed),
            started: now,
            pass_began: now,
            pass_at: (0, 0),
        }
    }

    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut period = LONG_PERIOD;
        while !stop.load(Ordering::Relaxed) {
            let requests = self.db.eviction.wait(period);
            let cpu_start = thread_time();
            let outcome = self.round(requests.partitions);
            if let Err(error) = &outcome {
                tracing::debug!(%error, "keys were not evicted");
            }
            let (evicted, is_short) = outcome.unwrap_or((0, true));
            period = if is_short { SHORT_PERIOD } else { LONG_PERIOD };
            self.db.eviction.answer(&requests, evicted > 0);
            self.age(period / AGING_TIME_SHARE);
            let cpu_ns = (thread_time() - cpu_start).as_nanos() as u64;
            self.db.eviction.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        }
    }

    /// Evicts keys where memory is short, or a writer has asked for it. Returns the bytes of the evicted keys, and whether memory
    /// is or was nearly short.
    fn round(&mut self, requests: u64) -> Result<(u64, bool)> {
        let policy = self.db.eviction.policy();
        if policy == EvictionPolicy::NoEviction {
            return Ok((0, false));
        }
        if self.db.eviction.take_reset() {
            self.reset_usage(policy);
        }
        let (mut evicted, mut is_short) = (0, false);
        for index in 0..self.partitions.len() {
            if self.partitions[index].exhausted_until.is_some_and(|until| Instant::now() < until) {
                is_short = true;
                continue;
            }
            self.partitions[index].pending.settle(self.db.released_ts());
            let pending = self.partitions[index].pending.bytes();
            let total = self.db.room(index as u32, 0).total;
            let wanted = total / EVICTION_FREE_SHARE;
            let free = self.db.room(index as u32, 2 * wanted).free;
            is_short |= free < 2 * wanted;
            let requested = if requests >> index & 1 != 0 {
                (total / STEP_SHARE).clamp(*STEP_BYTES.start(), *STEP_BYTES.end()).saturating_sub(pending)
            } else {
                0
            };
            let shortage = wanted.saturating_sub(free + pending);
            let bytes = if shortage == 0 && requested > 0 {
                // There is memory, but not of the size that the writer needs.
                self.empty_pieces(index, policy, requested)?
            } else {
                let goal = shortage.max(requested);
                if goal == 0 { 0 } else { self.evict(index, policy, goal, total)? }
            };
            if bytes > 0 {
                self.db.collect_garbage(index as u32)?;
            }
            evicted += bytes;
        }
        Ok((evicted, is_short))
    }

    /// Evicts keys that take about `goal` bytes together, in the order of the policy. Returns the bytes of those that it
    /// evicted, which are fewer if the policy allows no more.
    fn evict(&mut self, index: usize, policy: EvictionPolicy, goal: u64, total: u64) -> Result<u64> {
        let mut share = (goal as f64 / total as f64).clamp(LEAST_SHARE, 1.0);
        let (mut evicted, started) = (0, Instant::now());
        loop {
            let threshold = if share < 1.0 { self.sample(index, policy)?.threshold(share) } else { 0 };
            evicted += self.pass(index, policy, threshold, goal - evicted)?;
            if evicted >= goal {
                self.db.eviction.set_exhausted(index as u32, false);
                return Ok(evicted);
            }
            if share >= 1.0 {
                let pause = EXHAUSTED_PAUSE.max(started.elapsed() * EXHAUSTED_PAUSE_FACTOR);
                self.partitions[index].exhausted_until = Some(Instant::now() + pause);
                self.db.eviction.set_exhausted(index as u32, true);
                return Ok(evicted);
            }
            share = (2.0 * share).min(1.0);
        }
    }

    /// Evicts keys from a score on, until they have taken `goal` bytes, or until all pieces were read once.
    fn pass(&mut self, index: usize, policy: EvictionPolicy, threshold: u8, goal: u64) -> Result<u64> {
        let (mut evicted, mut read) = (0, 0);
        while evicted < goal && read < self.partitions[index].source.pieces() {
            let pieces = self.partitions[index].source.pieces();
            let piece = self.partitions[index].cursor % pieces;
            let (victims, next) = self.choose(index, piece, policy, threshold)?;
            for victim in &victims {
                if evicted >= goal {
                    // The rest of this piece is for the next pass.
                    return Ok(evicted);
                }
                evicted += self.evict_key(index, victim)?;
            }
            read += next - piece;
            self.partitions[index].cursor = next;
        }
        Ok(evicted)
    }

    /// The keys of a piece with at least this score, and the piece that follows.
    fn choose(
        &mut self,
        index: usize,
        piece: u64,
        policy: EvictionPolicy,
        threshold: u8,
    ) -> Result<(Vec<Victim>, u64)> {
        let now_ms = unix_ms();
        let (mut victims, random) = (Vec::new(), &mut self.random);
        let next = self.partitions[index].source.read(piece, &mut |candidate: Candidate, copy_key| {
            let score = score(policy, &candidate, now_ms, random.random());
            if score.is_some_and(|score| score >= threshold)
                && let Some(key) = copy_key()
            {
                victims.push(Victim { key, commit_ts: candidate.commit_ts, bytes: candidate.bytes });
            }
        })?;
        Ok((victims, next))
    }

    /// Evicts a key; returns its bytes, or 0 if it has changed or is in use.
    fn evict_key(&mut self, index: usize, victim: &Victim) -> Result<u64> {
        let db = self.db;
        let closed = db.expiry.pause();
        if *closed {
            return Err(Error::Busy);
        }
        match self.session.evict(&victim.key, victim.commit_ts) {
            Ok(Written::Done { commit_ts }) => {
                db.eviction.evicted.fetch_add(1, Ordering::Relaxed);
                self.partitions[index].pending.add(commit_ts, victim.bytes);
                Ok(victim.bytes)
            }
            Ok(Written::ConditionFailed) | Err(Error::Conflict | Error::NoVersion | Error::NoMemory) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Reads some keys of random pieces.
    fn sample(&mut self, index: usize, policy: EvictionPolicy) -> Result<Sample> {
        let now_ms = unix_ms();
        let mut sample = Sample::new();
        for piece in self.draw_pieces(index) {
            let random = &mut self.random;
            let first = random.random();
            self.partitions[index].source.sample(piece, SAMPLE_KEYS, first, &mut |candidate, _| {
                if let Some(score) = score(policy, &candidate, now_ms, random.random()) {
                    sample.add(score, candidate.bytes);
                }
            })?;
        }
        Ok(sample)
    }

    /// Random pieces that may have keys; all of them if they are few.
    fn draw_pieces(&mut self, index: usize) -> Vec<u64> {
        let source = &self.partitions[index].source;
        let pieces = source.pieces();
        if pieces <= SAMPLE_PIECES as u64 {
            return (0..pieces).filter(|piece| source.has_keys(*piece)).collect();
        }
        // Pieces without keys may be many times as many as those with keys.
        let mut drawn = Vec::with_capacity(SAMPLE_PIECES);
        for _ in 0..SAMPLE_PIECES {
            let start = self.random.random_range(0..pieces);
            let found = (start..pieces).chain(0..start).find(|piece| source.has_keys(*piece));
            drawn.extend(found);
        }
        drawn
    }

    /// Evicts all keys of some pieces, so that their memory can serve keys and values of any size. Returns the bytes of the keys.
    fn empty_pieces(&mut self, index: usize, policy: EvictionPolicy, goal: u64) -> Result<u64> {
        let now_ms = unix_ms();
        let mut costs = Vec::new();
        for piece in self.draw_pieces(index) {
            let (mut cost, mut stays, random) = (0, false, &mut self.random);
            self.partitions[index].source.read(piece, &mut |candidate, _| match score(
                policy,
                &candidate,
                now_ms,
                random.random(),
            ) {
                Some(score) => cost += 1 + u64::from(u8::MAX - score),
                None => stays = true,
            })?;
            if cost > 0 && !stays {
                costs.push((cost, piece));
            }
        }
        costs.sort_unstable();
        costs.dedup();
        let (mut evicted, mut emptied) = (0, 0);
        for (_, piece) in costs {
            if emptied >= goal {
                break;
            }
            for victim in self.choose(index, piece, policy, 0)?.0 {
                evicted += self.evict_key(index, &victim)?;
            }
            emptied += u64::from(KDB_SLAB_BYTES);
        }
        Ok(evicted)
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Lets the usage of some keys age, within a budget of processor time.
    fn age(&mut self, budget: Duration) {
        let eviction = &self.db.eviction;
        let kind = eviction.policy().usage_kind();
        if !matches!(kind, KDB_USAGE_IDLE | KDB_USAGE_COUNT) {
            return;
        }
        if self.pass_at == (0, 0) {
            if self.pass_began.elapsed() < AGING_INTERVAL {
                return;
            }
            self.pass_began = Instant::now();
        }
        let minutes = eviction.decay_minutes.load(Ordering::Relaxed);
        let (cpu_start, now_ms) = (thread_time(), self.now_ms());
        while thread_time() - cpu_start < budget {
            let (index, piece) = self.pass_at;
            let Some(partition) = self.partitions.get_mut(index) else {
                self.pass_at = (0, 0);
                return;
            };
            if piece >= partition.source.pieces() {
                self.pass_at = (index + 1, 0);
                continue;
            }
            if partition.aged_ms.len() <= piece as usize {
                partition.aged_ms.resize(piece as usize + 1, now_ms);
            }
            let ms = now_ms - std::mem::replace(&mut partition.aged_ms[piece as usize], now_ms);
            let random = &mut self.random;
            partition.source.update_usage(piece, &mut |before| match kind {
                KDB_USAGE_IDLE => usage::grow_idle(before, ms, random.random()),
                _ => usage::decay_count(before, ms, minutes, random.random()),
            });
            self.pass_at = (index, piece + 1);
        }
    }

    /// Gives all keys the usage of a new key.
    fn reset_usage(&mut self, policy: EvictionPolicy) {
        let new = if policy.usage_kind() == KDB_USAGE_COUNT { usage::NEW_COUNT } else { 0 };
        let now_ms = self.now_ms();
        for partition in &mut self.partitions {
            let pieces = partition.source.pieces();
            (0..pieces).for_each(|piece| partition.source.update_usage(piece, &mut |_| new));
            partition.aged_ms = vec![now_ms; pieces as usize];
        }
    }
}
