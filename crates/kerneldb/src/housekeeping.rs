//! The background work of a database, and memory for writes that find none.
//!
//! One thread at a time does it, under the lock `Inner::housekeeping`: the background thread, or a session whose
//! write would fail otherwise.

use std::{
    collections::HashMap,
    sync::{MutexGuard, atomic::Ordering},
    time::{Duration, Instant},
};

use crate::{
    Result, arena::Partition, database::Inner, hashmap::HashStore, limits::RECLAIM_ATTEMPTS,
    memory_wait::Seen,
};

/// Entries that one call of the collector visits.
const COLLECT_BUDGET: u64 = 4096;
/// The background thread reclaims scarce memory this often.
const RECLAIM_PAUSE: Duration = Duration::from_millis(20);

/// What background work remembers from one round to the next.
#[derive(Default)]
pub(crate) struct Housekeeping {
    /// By partition: what had been freed when there was nothing to reclaim.
    fruitless: HashMap<usize, u64>,
    /// Scarce memory was looked for.
    reclaimed_at: Option<Instant>,
}

impl Housekeeping {
    /// Whether a background round should look for memory again.
    fn reclaim_is_due(&mut self) -> bool {
        let due = self.reclaimed_at.is_none_or(|at| at.elapsed() >= RECLAIM_PAUSE);
        if due {
            self.reclaimed_at = Some(Instant::now());
        }
        due
    }
}

impl Inner {
    /// Whether a transaction may soon find no memory in a partition.
    pub(crate) fn lacks_slabs(&self, partition: u32) -> bool {
        self.partitions.get(partition as usize).is_some_and(Partition::lacks_slabs)
    }

    /// Makes memory available in a partition that ran out of it; false at the limit.
    pub(crate) fn grow(&self, partition: u32) -> bool {
        self.partitions.get(partition as usize).is_some_and(Partition::grow)
    }

    /// Bytes backed by memory in a partition.
    pub(crate) fn committed(&self, partition: u32) -> u64 {
        self.partitions.get(partition as usize).map_or(0, Partition::committed)
    }

    /// Makes more than `seen` bytes available in a partition, at the nth attempt of one operation; false at
    /// the limit.
    pub(crate) fn grow_beyond(&self, partition: u32, seen: u64, attempt: u32) -> bool {
        if let Some(hash) = &self.hash {
            return hash.wait_for_memory(attempt);
        }
        let Some(arena) = self.partitions.get(partition as usize) else { return false };
        arena.grow_beyond(seen) || attempt < RECLAIM_ATTEMPTS && self.make_room(partition)
    }

    /// Collects and reclaims what a partition at its limit does not need; whether there was anything.
    pub(crate) fn make_room(&self, partition: u32) -> bool {
        let mut housekeeping = self.lock_housekeeping();
        match self.make_room_locked(partition as usize, &mut housekeeping) {
            Ok(some) => some,
            Err(e) => {
                tracing::error!("cannot reclaim memory: {e}");
                false
            }
        }
    }

    fn make_room_locked(&self, index: usize, housekeeping: &mut Housekeeping) -> Result<bool> {
        let Some(partition) = self.partitions.get(index) else { return Ok(false) };
        let before = self.freed();
        while self.collect(index)? {}
        let freed = self.freed();
        let seen = housekeeping.fruitless.entry(index).or_insert(u64::MAX);
        // Nothing was freed since the last time that there was nothing to reclaim.
        if *seen == freed {
            return Ok(partition.free_slabs() > 0);
        }
        let evacuate = self.programs[index].evacuate.as_ref();
        let reclaimed = partition.reclaim(&self.grace, &mut |slab| match evacuate {
            Some(program) => program.run(&mut [slab, 0, 0]).map(drop),
            None => Ok(()),
        })?;
        if reclaimed == 0 && !partition.is_evacuating() {
            *seen = freed;
        }
        // Another thread may have reclaimed what this one was waiting for.
        Ok(reclaimed > 0 || freed != before || partition.free_slabs() > 0)
    }

    /// Changes whenever memory was freed by an operator or by the collector.
    fn freed(&self) -> u64 {
        let stats = self.counters();
        stats.versions_pruned + stats.entries_collected + stats.blocks_waited + stats.rollbacks
    }

    /// What a write that finds no memory at the limit can hope for.
    pub(crate) fn memory_seen(&self, partition: u32) -> Seen {
        let state = self.state();
        // The clock after the partition: what waits is of commits up to there.
        let drained = state.drained_ts.load(Ordering::SeqCst);
        let partition = self.partitions.get(partition as usize);
        let waiting = partition.is_some_and(Partition::has_limbo);
        let ready = partition.is_some_and(|partition| partition.limbo_ends(drained));
        Seen { waiting, ready, drained, clock: state.clock.load(Ordering::SeqCst) }
    }

    /// Whether memory should be made available in a partition before a transaction writes to it.
    pub(crate) fn wants_memory(&self, partition: u32) -> bool {
        self.partitions.get(partition as usize).is_some_and(Partition::wants_memory)
    }

    pub(crate) fn lock_housekeeping(&self) -> MutexGuard<'_, Housekeeping> {
        self.housekeeping.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// One round of background work; returns whether there may be more.
    pub(crate) fn housekeep(&self) -> Result<bool> {
        self.housekeep_locked(&mut self.lock_housekeeping())
    }

    /// Lets the collector of a partition work; returns whether there may be more for it.
    fn collect(&self, index: usize) -> Result<bool> {
        let (partition, programs) = (&self.partitions[index], &self.programs[index]);
        if !partition.has_garbage() && !partition.has_limbo() {
            return Ok(false);
        }
        let before = self.counters();
        let visited = programs.collect.run(&mut [COLLECT_BUDGET, 0, 0])?;
        let after = self.counters();
        // What a snapshot holds is queued again: looking at once would not help.
        let collected = (after.versions_pruned, after.entries_collected)
            != (before.versions_pruned, before.entries_collected);
        Ok(u64::from(visited) == COLLECT_BUDGET && collected
            || after.blocks_waited - before.blocks_waited >= COLLECT_BUDGET)
    }

    pub(crate) fn housekeep_locked(&self, housekeeping: &mut Housekeeping) -> Result<bool> {
        let mut more = false;
        for (index, partition) in self.partitions.iter().enumerate() {
            if partition.wants_memory() {
                more |= partition.grow();
            }
            more |= self.collect(index)?;
            if partition.scarce() && housekeeping.reclaim_is_due() {
                self.make_room_locked(index, housekeeping)?;
            }
        }
        if self.hash.as_ref().is_some_and(HashStore::has_garbage) {
            let visited = self.programs[0].collect.run(&mut [COLLECT_BUDGET, 0, 0])?;
            more |= u64::from(visited) == COLLECT_BUDGET;
        }
        self.update_clock_offset();
        Ok(more)
    }
}
