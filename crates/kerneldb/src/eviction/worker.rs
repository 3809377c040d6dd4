//! The thread of eviction: keeps memory free, and answers writers. Between its slices, it lets the usage of keys age (`aging`).
//!
//! It works in short slices and takes the partitions in turns, those with a writer that waits first. So a writer waits for a
//! slice only, a change of the policy takes effect at once, and the thread ends soon.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::{
    aging::Aging,
    choice::{Sample, score},
    pending::Pending,
};
use crate::{
    Error, Result, Session, Written,
    engine::{Candidate, Engine, EvictionPolicy, EvictionSource, thread_time, unix_ms},
    layout::KDB_SLAB_BYTES,
    limits::EVICTION_FREE_SHARE,
};

/// The thread looks at the memory this often while little of it is free.
const SHORT_PERIOD: Duration = Duration::from_millis(10);
/// The same otherwise.
const LONG_PERIOD: Duration = Duration::from_millis(100);
/// Part of its time that the thread takes at most for looking at the memory, unless a writer waits.
const LOOK_TIME_SHARE: u32 = 50;
/// The longest time of a slice.
const SLICE: Duration = Duration::from_millis(10);
/// Pieces that are drawn for a sample. Keys that were written together are in the same pieces, so a sample needs many.
const SAMPLE_PIECES: usize = 64;
/// Keys of each piece in a sample.
const SAMPLE_KEYS: u64 = 32;
/// The smallest share of the memory from which keys are chosen: a smaller one would need more reading for each key.
const LEAST_SHARE: f64 = 1.0 / 64.0;
/// Bytes that are evicted for a writer without memory: a share of the partition, within bounds.
const STEP_SHARE: u64 = 64;
const STEP_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=4 << 20;
/// After all keys were read and too few could be evicted, the next search begins after a pause in proportion to the time that the
/// search has taken, within these bounds.
const EXHAUSTED_PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(1);
const EXHAUSTED_PAUSE_FACTOR: u32 = 20;

/// A key that was chosen.
struct Victim {
    key: Vec<u8>,
    commit_ts: u64,
    bytes: u64,
}

/// A search for keys to evict that takes several slices.
struct Search {
    began: Instant,
    /// Keys from this score on are evicted. `None`: it is to be found by a sample.
    threshold: Option<u8>,
    /// The share of the memory that the threshold stands for.
    share: f64,
    /// Pieces read with this threshold.
    read: u64,
}

/// The keys of a partition, and the thread's position in them.
struct Partition<'db> {
    source: Box<dyn EvictionSource + 'db>,
    /// The next piece from which keys are evicted.
    cursor: u64,
    search: Option<Search>,
    pending: Pending,
    /// Until this time there is nothing to evict: all keys were read, and the policy allowed too few.
    exhausted_until: Option<Instant>,
}

/// The result of a slice.
#[derive(Default)]
struct Outcome {
    /// Bytes of the keys that were evicted.
    evicted: u64,
    /// Memory is short, or nearly.
    is_short: bool,
    /// There is more to do at once.
    is_unfinished: bool,
}

/// The state of the thread.
pub(super) struct Worker<'db> {
    db: &'db Engine,
    session: Session,
    partitions: Vec<Partition<'db>>,
    random: SmallRng,
    aging: Aging,
    /// The policy and its generation.
    policy: EvictionPolicy,
    generation: u64,
}

impl<'db> Worker<'db> {
    pub(super) fn new(db: &'db Engine, session: Session, seed: u64) -> Worker<'db> {
        let partition = |index| Partition {
            source: db.eviction_source(index),
            cursor: 0,
            search: None,
            pending: Pending::default(),
            exhausted_until: None,
        };
        Worker {
            db,
            session,
            partitions: (0..db.partitions()).map(partition).collect(),
            random: SmallRng::seed_from_u64(seed),
            aging: Aging::new(),
            policy: EvictionPolicy::NoEviction,
            generation: db.eviction.generation(),
        }
    }

    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut period = LONG_PERIOD;
        while !stop.load(Ordering::Relaxed) {
            let requests = self.db.eviction.wait(period);
            let (cpu_start, began) = (thread_time(), Instant::now());
            self.note_policy();
            let (mut is_short, mut is_unfinished) = (false, false);
            for (index, made) in requests {
                let outcome = self.slice(index, true);
                self.db.eviction.answer(index, made, outcome.evicted > 0 || outcome.is_unfinished);
                is_short = true;
            }
            for index in 0..self.partitions.len() {
                let outcome = self.slice(index, false);
                is_short |= outcome.is_short;
                is_unfinished |= outcome.is_unfinished;
            }
            period = match (is_unfinished, is_short) {
                (true, _) => Duration::ZERO,
                (_, true) => SHORT_PERIOD.max(began.elapsed() * LOOK_TIME_SHARE).min(LONG_PERIOD),
                _ => LONG_PERIOD,
            };
            let sources: Vec<&dyn EvictionSource> = self.partitions.iter().map(|p| &*p.source).collect();
            let minutes = self.db.eviction.decay_minutes.load(Ordering::Relaxed);
            self.aging.advance(&sources, self.policy, minutes, &mut self.random);
            let cpu_ns = (thread_time() - cpu_start).as_nanos() as u64;
            self.db.eviction.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        }
    }

    /// Begins anew if the policy has changed.
    fn note_policy(&mut self) {
        let eviction = &self.db.eviction;
        let generation = eviction.generation();
        if generation != self.generation {
            self.generation = generation;
            for (index, partition) in self.partitions.iter_mut().enumerate() {
                (partition.search, partition.exhausted_until) = (None, None);
                eviction.set_exhausted(index as u32, false);
            }
        }
        self.policy = eviction.policy();
        if eviction.take_reset() {
            self.aging.reset();
        }
    }

    /// Evicts keys of a partition if memory is short there, or a writer has asked for it.
    fn slice(&mut self, index: usize, requested: bool) -> Outcome {
        let mut outcome = Outcome::default();
        if self.policy == EvictionPolicy::NoEviction {
            return outcome;
        }
        if self.is_exhausted(index) {
            return Outcome { is_short: true, ..outcome };
        }
        if let Err(error) = self.try_slice(index, requested, &mut outcome) {
            tracing::debug!(%error, "some keys were not evicted");
        }
        if outcome.evicted > 0
            && let Err(error) = self.db.collect_garbage(index as u32)
        {
            tracing::debug!(%error, "the memory of evicted keys is not free yet");
        }
        outcome
    }

    fn is_exhausted(&self, index: usize) -> bool {
        self.partitions[index].exhausted_until.is_some_and(|until| Instant::now() < until)
    }

    fn try_slice(&mut self, index: usize, requested: bool, outcome: &mut Outcome) -> Result<()> {
        let (db, partition) = (self.db, index as u32);
        if self.partitions[index].pending.bytes() > 0 {
            let released = db.released_ts();
            db.collect_garbage(partition)?;
            self.partitions[index].pending.settle(released);
        }
        let pending = self.partitions[index].pending.bytes();
        let total = db.room(partition, 0).total;
        let wanted = total / EVICTION_FREE_SHARE;
        let free = db.room(partition, 2 * wanted).free;
        outcome.is_short = free < 2 * wanted;
        let step = (total / STEP_SHARE).clamp(*STEP_BYTES.start(), *STEP_BYTES.end());
        let for_writer = if requested { step.saturating_sub(pending) } else { 0 };
        let shortage = wanted.saturating_sub(free + pending);
        if shortage == 0 && for_writer > 0 {
            // There is memory, but not of the size that the writer needs.
            self.empty_pieces(index, for_writer, &mut outcome.evicted)?;
            if outcome.evicted > 0 {
                return Ok(());
            }
        }
        let goal = shortage.max(for_writer).min(step);
        if goal == 0 {
            self.partitions[index].search = None;
            db.eviction.set_exhausted(partition, false);
            return Ok(());
        }
        outcome.is_unfinished = !self.evict(index, goal, total, &mut outcome.evicted)? || shortage > goal;
        outcome.is_unfinished &= !self.is_exhausted(index);
        Ok(())
    }

    /// Evicts keys that take about `goal` bytes together, in the order of the policy, and adds their bytes to `evicted`. Returns
    /// whether it is done: it has reached the goal, or has found that the policy allows no more. Otherwise the time is up.
    fn evict(&mut self, index: usize, goal: u64, total: u64, evicted: &mut u64) -> Result<bool> {
        let deadline = Instant::now() + SLICE;
        let share = (goal as f64 / total as f64).clamp(LEAST_SHARE, 1.0);
        let fresh = Search { began: Instant::now(), threshold: None, share, read: 0 };
        let mut search = self.partitions[index].search.take().unwrap_or(fresh);
        loop {
            let threshold = match search.threshold {
                Some(threshold) => threshold,
                None if search.share >= 1.0 => 0,
                None => self.sample(index)?.threshold(search.share),
            };
            search.threshold = Some(threshold);
            while search.read < self.partitions[index].source.pieces() {
                if *evicted >= goal {
                    self.db.eviction.set_exhausted(index as u32, false);
                    return Ok(true);
                }
                if self.db.eviction.generation() != self.generation {
                    return Ok(true);
                }
                if Instant::now() >= deadline {
                    self.partitions[index].search = Some(search);
                    return Ok(false);
                }
                let pieces = self.partitions[index].source.pieces();
                let piece = self.partitions[index].cursor % pieces;
                let (victims, next) = self.choose(index, piece, threshold)?;
                *evicted += self.evict_keys(index, &victims, goal - *evicted)?;
                search.read += next - piece;
                self.partitions[index].cursor = next;
            }
            if search.share >= 1.0 {
                let pause = (search.began.elapsed() * EXHAUSTED_PAUSE_FACTOR)
                    .clamp(*EXHAUSTED_PAUSE.start(), *EXHAUSTED_PAUSE.end());
                self.partitions[index].exhausted_until = Some(Instant::now() + pause);
                self.db.eviction.set_exhausted(index as u32, true);
                return Ok(true);
            }
            search = Search { share: (2.0 * search.share).min(1.0), threshold: None, read: 0, ..search };
        }
    }

    /// The keys of a piece with at least this score, and the piece that follows.
    fn choose(&mut self, index: usize, piece: u64, threshold: u8) -> Result<(Vec<Victim>, u64)> {
        let (now_ms, policy) = (unix_ms(), self.policy);
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

    /// Evicts keys until they have taken `goal` bytes. Returns the bytes. Keys that have changed or are in use stay.
    fn evict_keys(&mut self, index: usize, victims: &[Victim], goal: u64) -> Result<u64> {
        let (mut evicted, mut newest_ts, mut error) = (0, 0, None);
        for victim in victims {
            if evicted >= goal {
                break;
            }
            match self.evict_key(victim) {
                Ok(Written::Done { commit_ts }) => {
                    self.db.eviction.evicted.fetch_add(1, Ordering::Relaxed);
                    (evicted, newest_ts) = (evicted + victim.bytes, commit_ts);
                }
                Ok(Written::ConditionFailed) | Err(Error::Conflict | Error::NoVersion | Error::NoMemory) => {}
                Err(cause) => {
                    error = Some(cause);
                    break;
                }
            }
        }
        if evicted > 0 {
            self.partitions[index].pending.add(newest_ts, evicted);
        }
        match error {
            Some(error) if evicted == 0 => Err(error),
            _ => Ok(evicted),
        }
    }

    fn evict_key(&self, victim: &Victim) -> Result<Written> {
        let closed = self.db.expiry.pause();
        if *closed {
            return Err(Error::Busy);
        }
        self.session.evict(&victim.key, victim.commit_ts)
    }

    /// Reads some keys of random pieces.
    fn sample(&mut self, index: usize) -> Result<Sample> {
        let (now_ms, policy) = (unix_ms(), self.policy);
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

    /// Evicts all keys of some pieces, so that their memory can serve keys and values of any size. Adds the bytes of the keys to
    /// `evicted`.
    fn empty_pieces(&mut self, index: usize, goal: u64, evicted: &mut u64) -> Result<()> {
        let (now_ms, policy) = (unix_ms(), self.policy);
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
        let mut emptied = 0;
        for (_, piece) in costs {
            if emptied >= goal {
                break;
            }
            let victims = self.choose(index, piece, 0)?.0;
            *evicted += self.evict_keys(index, &victims, u64::MAX)?;
            emptied += u64::from(KDB_SLAB_BYTES);
        }
        Ok(())
    }
}
