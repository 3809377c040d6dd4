//! Memory that moves between kinds of slabs, and that the eBPF programs cannot free themselves.
//!
//! A slab of value blocks goes back to the pool when its last block is freed. User space does the rest when free
//! slabs are scarce:
//!  - A program or a scan with a stale pointer may look at a slab of entries. The slab is taken out of use when it
//!    has no entries, and freed after every program and every scan that ran then has ended.
//!  - An empty slab that a CPU still allocates from is taken from that CPU.
//!  - The values in the emptiest slabs of a size move to the others of that size. Their slabs wait like those of
//!    entries.
//!
//! Entries do not move, because a scan's cursor is a position in memory: a slab with one entry stays.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Partition,
    readers::{Readers, Reading},
    size::kind_capacity,
    slab::Word,
};
use crate::{
    Result,
    bpf::GracePeriod,
    engine::storage::Evacuate,
    layout::{KDB_CLASSES, KDB_SLAB_CURRENT, KDB_SLAB_FULL, KDB_SLAB_PARTIAL},
    limits::{MAX_EVACUATING_SLABS, SCARCE_SLABS_SHARE},
};

/// The state of reclaiming in a partition.
#[derive(Default)]
pub(crate) struct Reclaimer {
    readers: Readers,
    evacuating: Mutex<Vec<Evacuating>>,
    reclaimed_slabs: AtomicU64,
}

/// A slab from which nothing is allocated any more.
struct Evacuating {
    slab: u64,
    /// Epoch of the scans at the time when the slab was empty and no program looked at it any more.
    retired: Option<u64>,
}

impl Reclaimer {
    /// Registers a scan of the mapped memory.
    pub(crate) fn read(&self) -> Reading<'_> {
        self.readers.enter()
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
        self.free_slabs() < self.geometry.slab_limit() / SCARCE_SLABS_SHARE
    }

    /// Whether the next write may find no free slab.
    pub(crate) fn lacks_slabs(&self) -> bool {
        !self.has_free_slabs(u64::from(self.geometry.ncpus))
    }

    /// Whether some slabs will become free when their contents are unused and no reader looks at them any more.
    pub(crate) fn is_evacuating(&self) -> bool {
        !self.reclaimer.evacuating().is_empty()
    }

    /// Gives unused slabs to the pool, and returns how many. With `move_values`, which moves the values of the
    /// entries in a slab out of evacuated slabs, it also empties sparse slabs. One thread at a time calls this.
    pub(crate) fn reclaim(&self, grace: &GracePeriod, move_values: Option<Evacuate<'_>>) -> Result<u64> {
        let mut evacuating = self.reclaimer.evacuating();
        let mut freed = self.take_unused(&mut evacuating);
        if move_values.is_some() {
            self.choose_sparse(&mut evacuating);
        }
        if let Some(move_values) = move_values
            && evacuating.iter().any(|e| self.slab_word(e.slab).used() > 0)
        {
            for slab in 0..self.used_slabs() {
                if self.slab_kind(slab) >= KDB_CLASSES && self.slab_word(slab).used() > 0 {
                    move_values(slab)?;
                }
            }
        }
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

    /// Takes the emptiest slabs of each size out of use, as far as their values fit into the others.
    fn choose_sparse(&self, evacuating: &mut Vec<Evacuating>) {
        let mut partial: BTreeMap<u32, Vec<(u64, u64, Word)>> = BTreeMap::new();
        for slab in 0..self.used_slabs() {
            let (word, kind) = (self.slab_word(slab), self.slab_kind(slab));
            if word.state() == KDB_SLAB_PARTIAL && kind < KDB_CLASSES {
                partial.entry(kind).or_default().push((word.used(), slab, word));
            }
        }
        for (kind, mut slabs) in partial {
            slabs.sort_unstable_by_key(|&(used, slab, _)| (used, Reverse(slab)));
            let capacity = kind_capacity(kind);
            let mut room: u64 = slabs.iter().map(|(used, ..)| capacity - used).sum();
            let mut moving = 0;
            for (used, slab, word) in slabs {
                // The slab's own free blocks are no room for others.
                room -= capacity - used;
                moving += used;
                if moving > room || evacuating.len() >= MAX_EVACUATING_SLABS {
                    break;
                }
                if self.evacuate(slab, word) {
                    evacuating.push(Evacuating { slab, retired: None });
                }
            }
        }
    }

    /// Frees evacuated slabs that no reader can look at any more; returns how many.
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
