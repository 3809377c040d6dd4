//! Memory that moves between kinds of slabs: what the eBPF programs cannot free themselves.
//!
//! A slab of value blocks goes back to the pool when its last block is freed. The rest needs user space, and is
//! done when free slabs are scarce:
//!  - A slab of entries may be looked at by a program or a scan that has a stale pointer into it. It is taken out
//!    of use when it has no entries, and freed after every program and every scan that ran then has ended.
//!  - An empty slab that a CPU still allocates from is taken from that CPU.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use super::{
    Partition,
    readers::{Readers, Reading},
};
use crate::{
    Result,
    bpf::GracePeriod,
    layout::{KDB_CLASSES, KDB_SLAB_CURRENT, KDB_SLAB_FULL, KDB_SLAB_PARTIAL},
    limits::SCARCE_SLABS_SHARE,
};

/// What a partition's reclaiming keeps.
#[derive(Default)]
pub(crate) struct Reclaimer {
    readers: Readers,
    evacuating: Mutex<Vec<Evacuating>>,
    evacuated_bytes: AtomicU64,
    reclaimed_slabs: AtomicU64,
}

/// A slab from which nothing is allocated any more.
struct Evacuating {
    slab: u64,
    /// The epoch of the scans in which it was empty, and no program looked at it any more.
    retired: Option<u64>,
}

impl Reclaimer {
    /// Registers a scan of the mapped memory.
    pub(crate) fn read(&self) -> Reading<'_> {
        self.readers.enter()
    }

    /// Bytes of values that were moved.
    pub(crate) fn evacuated_bytes(&self) -> u64 {
        self.evacuated_bytes.load(Ordering::Relaxed)
    }

    /// Slabs that were given to the pool.
    pub(crate) fn reclaimed_slabs(&self) -> u64 {
        self.reclaimed_slabs.load(Ordering::Relaxed)
    }

    fn evacuating(&self) -> MutexGuard<'_, Vec<Evacuating>> {
        self.evacuating.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Partition {
    /// Whether free slabs are scarce.
    pub(crate) fn scarce(&self) -> bool {
        self.free_slabs() < self.geometry.slab_count() / SCARCE_SLABS_SHARE
    }

    /// Whether the next write may find no free slab.
    pub(crate) fn lacks_slabs(&self) -> bool {
        self.free_slabs() < u64::from(self.geometry.ncpus)
    }

    /// Gives unused slabs to the pool, and returns how many. One thread at a time.
    pub(crate) fn reclaim(&self, grace: &GracePeriod) -> Result<u64> {
        let mut evacuating = self.reclaimer.evacuating();
        let mut freed = self.take_unused(&mut evacuating);
        freed += self.free_retired(&mut evacuating, grace)?;
        self.reclaimer.reclaimed_slabs.fetch_add(freed, Ordering::Relaxed);
        Ok(freed)
    }

    /// Takes slabs without blocks or entries out of use; returns how many are free at once.
    fn take_unused(&self, evacuating: &mut Vec<Evacuating>) -> u64 {
        let mut freed = 0;
        for slab in 0..self.used_slabs() {
            let word = self.slab_word(slab);
            let settled = matches!(word.state(), KDB_SLAB_CURRENT | KDB_SLAB_PARTIAL | KDB_SLAB_FULL);
            if !settled || word.used() != 0 {
                continue;
            }
            if self.slab_kind(slab) < KDB_CLASSES {
                freed += u64::from(self.free_if_unused(slab));
            } else if self.evacuate(slab, word) {
                evacuating.push(Evacuating { slab, retired: None });
            }
        }
        freed
    }

    /// Frees evacuated slabs that nobody can look at any more; returns how many.
    fn free_retired(&self, evacuating: &mut Vec<Evacuating>, grace: &GracePeriod) -> Result<u64> {
        let empty = |e: &Evacuating| e.retired.is_none() && self.slab_word(e.slab).used() == 0;
        let emptied: Vec<usize> = (0..evacuating.len()).filter(|&i| empty(&evacuating[i])).collect();
        if !emptied.is_empty() {
            grace.wait()?;
            let epoch = self.reclaimer.readers.epoch();
            emptied.into_iter().for_each(|i| evacuating[i].retired = Some(epoch));
        }
        let mut freed = 0;
        evacuating.retain(|e| {
            let passed = e.retired.is_some_and(|epoch| self.reclaimer.readers.passed(epoch));
            if passed {
                self.free_evacuated(e.slab);
                freed += 1;
            }
            !passed
        });
        Ok(freed)
    }
}
