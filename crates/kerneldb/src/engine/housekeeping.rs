//! The background work of a database, and memory for writes that find none.
//!
//! One thread at a time does it, under the lock `Engine::housekeeping`: the background thread, or a session whose
//! write would fail otherwise.

use std::{
    collections::HashMap,
    sync::MutexGuard,
    time::{Duration, Instant},
};

use super::Engine;
use crate::{
    Result,
    limits::{EVICTION_ATTEMPTS, RECLAIM_ATTEMPTS, RECLAIM_TIME_SHARE},
};

/// Entries that one call of the collector visits.
const COLLECT_BUDGET: u64 = 4096;
/// Interval at which the background thread reclaims scarce memory.
const RECLAIM_PAUSE: Duration = Duration::from_millis(20);
/// Interval at which the background thread looks for slabs whose entries were all removed, while entries are
/// removed.
const UNUSED_PAUSE: Duration = Duration::from_millis(500);

/// State of background work that is kept between rounds.
#[derive(Default)]
pub(crate) struct Housekeeping {
    /// By partition: the value of `freed` when there was nothing to reclaim.
    fruitless: HashMap<u32, u64>,
    /// By partition: time before which the background thread does not search for scarce memory again.
    next_reclaim: HashMap<u32, Instant>,
    /// By partition: time of the last search for unused slabs, and the number of entries removed by then.
    unused: HashMap<u32, (Instant, u64)>,
}

impl Housekeeping {
    /// Whether a background round should look for slabs without entries. `removed`: number of entries removed so
    /// far. `pending`: some slabs wait for readers to end.
    fn unused_is_due(&mut self, partition: u32, removed: u64, pending: bool) -> bool {
        let (at, before) = self.unused.entry(partition).or_insert((Instant::now(), 0));
        let due = (pending || *before != removed) && at.elapsed() >= UNUSED_PAUSE;
        if due {
            (*at, *before) = (Instant::now(), removed);
        }
        due
    }

    /// Whether a background round should look for memory again.
    fn reclaim_is_due(&self, partition: u32) -> bool {
        self.next_reclaim.get(&partition).is_none_or(|at| Instant::now() >= *at)
    }

    /// Notes the end of a search that has begun at `started`. The next one begins after a pause in proportion to its duration.
    fn note_reclaim(&mut self, partition: u32, started: Instant) {
        let pause = RECLAIM_PAUSE.max(started.elapsed() * (RECLAIM_TIME_SHARE - 1));
        self.next_reclaim.insert(partition, Instant::now() + pause);
    }
}

impl Engine {
    /// Whether a transaction may soon find no memory in a partition.
    pub(crate) fn lacks_slabs(&self, partition: u32) -> bool {
        self.storage.lacks_slabs(partition)
    }

    /// Makes more than `seen` bytes available in a partition, at the nth attempt of one operation; false at
    /// the limit.
    pub(crate) fn grow_beyond(&self, partition: u32, seen: u64, attempt: u32) -> bool {
        self.storage.grow_beyond(partition, seen, attempt)
            || attempt < RECLAIM_ATTEMPTS && self.make_room(partition)
            || attempt < EVICTION_ATTEMPTS && self.evict_for(partition)
    }

    /// Has keys evicted for a write that finds no memory; returns whether another attempt makes sense.
    fn evict_for(&self, partition: u32) -> bool {
        let evicted = self.eviction.request(partition);
        if evicted {
            self.make_room(partition);
        }
        evicted
    }

    /// Frees what deleted keys have left in a partition.
    pub(crate) fn collect_garbage(&self, partition: u32) -> Result<()> {
        let _housekeeping = self.lock_housekeeping();
        while self.collect(partition)? {}
        Ok(())
    }

    /// Forgets that there was nothing to reclaim, because there are new slabs that no search has seen.
    pub(crate) fn look_for_room_again(&self) {
        self.lock_housekeeping().fruitless.clear();
    }

    /// Collects and reclaims memory that a partition at its limit does not need; returns whether there was any.
    pub(crate) fn make_room(&self, partition: u32) -> bool {
        let mut housekeeping = self.lock_housekeeping();
        match self.make_room_locked(partition, &mut housekeeping) {
            Ok(some) => some,
            Err(e) => {
                tracing::error!("cannot reclaim memory: {e}");
                false
            }
        }
    }

    fn make_room_locked(&self, partition: u32, housekeeping: &mut Housekeeping) -> Result<bool> {
        let before = self.freed();
        while self.collect(partition)? {}
        let freed = self.freed();
        let seen = housekeeping.fruitless.entry(partition).or_insert(u64::MAX);
        // Nothing was freed since the last time there was nothing to reclaim.
        if *seen == freed {
            return Ok(self.storage.free_slabs(partition) > 0);
        }
        let program = self.programs(partition).evacuate.as_ref();
        let mut evacuate = |slab| match program {
            Some(program) => program.run(&mut [slab, 0, 0]).map(drop),
            None => Ok(()),
        };
        let reclaimed = self.storage.reclaim(partition, &self.grace, Some(&mut evacuate))?;
        if reclaimed == 0 && !self.storage.is_evacuating(partition) {
            *seen = freed;
        }
        // Another thread may have reclaimed the memory that this one was waiting for.
        Ok(reclaimed > 0 || freed != before || self.storage.free_slabs(partition) > 0)
    }

    /// Changes whenever memory was freed by an operator or by the collector.
    fn freed(&self) -> u64 {
        let stats = self.counters();
        stats.versions_pruned + stats.entries_collected + stats.blocks_waited + stats.rollbacks
    }

    pub(super) fn lock_housekeeping(&self) -> MutexGuard<'_, Housekeeping> {
        self.housekeeping.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// One round of background work; returns whether there may be more.
    pub(crate) fn housekeep(&self) -> Result<bool> {
        self.housekeep_locked(&mut self.lock_housekeeping())
    }

    /// Runs the collector of a partition; returns whether it may have more to do.
    fn collect(&self, partition: u32) -> Result<bool> {
        if !self.storage.has_garbage(partition) && !self.storage.waits_for_log(partition) {
            return Ok(false);
        }
        let before = self.counters();
        let visited = self.programs(partition).collect.run(&mut [COLLECT_BUDGET, 0, 0])?;
        let after = self.counters();
        // The collector queues entries again that a snapshot holds: visiting them at once would not help.
        let collected = (after.versions_pruned, after.entries_collected)
            != (before.versions_pruned, before.entries_collected);
        Ok(u64::from(visited) == COLLECT_BUDGET && collected
            || after.blocks_waited - before.blocks_waited >= COLLECT_BUDGET)
    }

    pub(super) fn housekeep_locked(&self, housekeeping: &mut Housekeeping) -> Result<bool> {
        let mut more = false;
        self.control.enforce_timeouts(&|partition, args| self.programs(partition).reap.run(args))?;
        for partition in 0..self.storage.partitions() {
            if self.storage.wants_memory(partition) {
                more |= self.storage.grow(partition);
            }
            more |= self.collect(partition)?;
            if self.storage.is_scarce(partition) && housekeeping.reclaim_is_due(partition) {
                let started = Instant::now();
                self.make_room_locked(partition, housekeeping)?;
                housekeeping.note_reclaim(partition, started);
            } else if housekeeping.unused_is_due(
                partition,
                self.counters().entries_collected,
                self.storage.is_evacuating(partition),
            ) {
                self.storage.reclaim(partition, &self.grace, None)?;
            }
        }
        self.control.update_clock_offset();
        Ok(more)
    }
}
