//! One partition: its arena, and the growth of the memory behind it.
//!
//! The kernel side allocates memory below `committed` only. A thread that grows the memory touches the pages
//! first and raises `committed` afterwards. The `growth` lock admits one thread at a time.

use std::{
    mem::offset_of,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use super::{Geometry, reclaim::Reclaimer};
use crate::{
    bpf::ArenaMapping,
    layout::{KDB_SUPER_OFF, kdb_arena},
};

/// Memory is grown in steps of this size.
const STEP: u64 = 8 << 20;
/// Recovery grows beyond the limit in steps of this size.
const RESERVE_STEP: u64 = 1 << 20;

/// A partition's arena and geometry.
pub(crate) struct Partition {
    pub arena: ArenaMapping,
    pub geometry: Geometry,
    pub reclaimer: Reclaimer,
    growth: Mutex<()>,
    /// Recovery is under way, and may take the reserve.
    reserve_open: AtomicBool,
}

impl Partition {
    /// Formats a new arena and commits the first step of its heap.
    pub(crate) fn create(arena: ArenaMapping, geometry: Geometry) -> Self {
        geometry.format(&arena);
        let partition = Partition {
            arena,
            geometry,
            reclaimer: Reclaimer::default(),
            growth: Mutex::new(()),
            reserve_open: AtomicBool::new(false),
        };
        partition.grow();
        partition
    }

    fn super_word(&self, field: usize) -> &AtomicU64 {
        self.arena.word(u64::from(KDB_SUPER_OFF) + field as u64)
    }

    /// First byte that was never allocated.
    pub(crate) fn brk(&self) -> u64 {
        self.brk_word().load(Ordering::Relaxed)
    }

    /// The word of [`Partition::brk`], which only grows.
    pub(super) fn brk_word(&self) -> &AtomicU64 {
        self.super_word(offset_of!(kdb_arena, brk))
    }

    /// Bytes that are backed by memory.
    pub(crate) fn committed(&self) -> u64 {
        self.super_word(offset_of!(kdb_arena, committed)).load(Ordering::Relaxed)
    }

    /// Bytes of values that were moved in order to empty their slabs.
    pub(crate) fn evacuated_bytes(&self) -> u64 {
        self.super_word(offset_of!(kdb_arena, evacuated)).load(Ordering::Relaxed)
    }

    /// Sets the usage of keys that the operators keep.
    pub(super) fn set_usage_kind(&self, kind: u32) {
        let at = u64::from(KDB_SUPER_OFF) + offset_of!(kdb_arena, usage_kind) as u64;
        // SAFETY: in bounds (checked by `at`), aligned and mapped as long as `self`; every access is atomic.
        unsafe { AtomicU32::from_ptr(self.arena.at(at)) }.store(kind, Ordering::Release);
    }

    /// Sets how rarely accesses of keys that are used often count.
    pub(super) fn set_usage_factor(&self, factor: u32) {
        self.super_word(offset_of!(kdb_arena, usage_factor)).store(factor.into(), Ordering::Relaxed);
    }

    /// Number of index entries, including deleted ones that were not collected yet.
    pub(crate) fn entries(&self) -> u64 {
        self.super_word(offset_of!(kdb_arena, entries)).load(Ordering::Relaxed)
    }

    /// Counts index entries that a loader has linked.
    pub(super) fn add_entries(&self, entries: i64) {
        self.super_word(offset_of!(kdb_arena, entries)).fetch_add(entries as u64, Ordering::Relaxed);
    }

    /// Whether the collector has something to do.
    pub(crate) fn has_garbage(&self) -> bool {
        self.super_word(offset_of!(kdb_arena, gc_head)).load(Ordering::Relaxed) != 0
            || self.super_word(offset_of!(kdb_arena, gc_rest)).load(Ordering::Relaxed) != 0
    }

    /// Whether blocks wait for the log's reader.
    pub(crate) fn has_deferred(&self) -> bool {
        self.super_word(offset_of!(kdb_arena, deferred_head)).load(Ordering::Relaxed) != 0
            || self.super_word(offset_of!(kdb_arena, deferred_rest)).load(Ordering::Relaxed) != 0
    }

    /// Whether the collector's next run may free blocks that wait for the log's reader, which is done with all
    /// commits up to `drained`.
    pub(crate) fn deferred_ends(&self, drained: u64) -> bool {
        let rest = self.super_word(offset_of!(kdb_arena, deferred_rest)).load(Ordering::Relaxed);
        let until = self.super_word(offset_of!(kdb_arena, deferred_ts)).load(Ordering::Relaxed);
        self.has_deferred() && (rest == 0 || until <= drained)
    }

    /// Whether less memory is ready than the kernel side may need before the next check.
    pub(crate) fn wants_memory(&self) -> bool {
        let committed = self.committed();
        let ahead = (self.geometry.limit / 16).clamp(2 * STEP, 8 * STEP);
        committed < self.geometry.limit && committed - self.brk().min(committed) < ahead
    }

    /// Lets recovery grow beyond the limit.
    pub(crate) fn open_reserve(&self) {
        self.reserve_open.store(true, Ordering::Relaxed);
    }

    /// Lets memory grow to the limit only. Memory that recovery has used beyond it stays in use until the next
    /// start.
    pub(crate) fn close_reserve(&self) {
        let _growing = self.growth.lock().unwrap_or_else(|e| e.into_inner());
        self.reserve_open.store(false, Ordering::Relaxed);
        let used = self.geometry.limit.max(self.brk());
        if self.committed() > used {
            self.super_word(offset_of!(kdb_arena, committed)).store(used, Ordering::Release);
        }
    }

    /// Commits one more step; false at the limit.
    pub(crate) fn grow(&self) -> bool {
        self.grow_beyond(u64::MAX)
    }

    /// Commits one more step, unless another thread has committed more than `seen` meanwhile; false at the
    /// limit.
    pub(crate) fn grow_beyond(&self, seen: u64) -> bool {
        let _growing = self.growth.lock().unwrap_or_else(|e| e.into_inner());
        let committed = self.committed();
        if committed > seen {
            return true;
        }
        let mut target = (committed + STEP).min(self.geometry.limit);
        if target <= committed && self.reserve_open.load(Ordering::Relaxed) {
            target = (committed + RESERVE_STEP).min(self.geometry.capacity);
        }
        if target <= committed {
            return false;
        }
        self.arena.commit(committed, target);
        self.super_word(offset_of!(kdb_arena, committed)).store(target, Ordering::Release);
        true
    }

    /// Commits everything up to the limit, or `bytes` of the heap.
    pub(crate) fn grow_to(&self, bytes: u64) {
        while self.committed() - self.geometry.heap < bytes && self.grow() {}
    }
}
