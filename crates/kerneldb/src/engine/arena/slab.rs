//! Slabs as user space sees them: descriptors, bitmaps, and the use of the heap.
//!
//! `bpf/engine/arena/alloc.h` states the rules of the slabs' states.

use std::{
    mem::offset_of,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{
    Partition,
    size::{GRAIN, kind_bytes, kind_capacity},
};
use crate::engine::storage::Room;
use crate::layout::{
    KDB_CLASSES, KDB_KIND_FREE, KDB_KINDS, KDB_SLAB_BYTES, KDB_SLAB_CLAIMED, KDB_SLAB_CURRENT,
    KDB_SLAB_EVACUATING, KDB_SLAB_FREE, KDB_SLAB_FULL, KDB_SLAB_PARTIAL, KDB_WORD_CARVED_SHIFT,
    KDB_WORD_COUNT, KDB_WORD_FIRST, KDB_WORD_STATE_SHIFT, KDB_WORD_TAG_SHIFT, KDB_WORD_USED_SHIFT, kdb_slab,
};

/// The word of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// The word of a slab that was never used before. `first` is the number of the grain after the one at which the
    /// first block of the free list begins; 0 = the list is empty.
    fn new(state: u32, first: u64, used: u64, carved: u64) -> Word {
        Word(
            first
                | used << KDB_WORD_USED_SHIFT
                | carved << KDB_WORD_CARVED_SHIFT
                | u64::from(state) << KDB_WORD_STATE_SHIFT,
        )
    }

    /// Offset in the slab of the first free block of its list.
    pub(crate) fn first(self) -> Option<u64> {
        (self.0 & u64::from(KDB_WORD_FIRST)).checked_sub(1).map(|grain| grain * GRAIN)
    }

    /// Blocks in use.
    pub(crate) fn used(self) -> u64 {
        self.0 >> KDB_WORD_USED_SHIFT & u64::from(KDB_WORD_COUNT)
    }

    /// Blocks that were handed out since the slab got its kind.
    pub(crate) fn carved(self) -> u64 {
        self.0 >> KDB_WORD_CARVED_SHIFT & u64::from(KDB_WORD_COUNT)
    }

    /// `KDB_SLAB_*`.
    pub(crate) fn state(self) -> u32 {
        (self.0 >> KDB_WORD_STATE_SHIFT) as u32 & 7
    }

    /// The word of an empty slab in a state, after this one.
    fn emptied(self, state: u32) -> Word {
        let tag = (self.0 >> KDB_WORD_TAG_SHIFT).wrapping_add(1) << KDB_WORD_TAG_SHIFT;
        Word(tag | u64::from(state) << KDB_WORD_STATE_SHIFT)
    }

    /// The word after a change of the state.
    fn with_state(self, state: u32) -> Word {
        let others = self.0 & !(7 << KDB_WORD_STATE_SHIFT);
        Word((others | u64::from(state) << KDB_WORD_STATE_SHIFT).wrapping_add(1 << KDB_WORD_TAG_SHIFT))
    }
}

/// Use of the heaps. Every slab that was ever used is counted in one of the first three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes in slabs of values and index entries.
    pub slab_bytes: u64,
    /// Bytes in free slabs that were used before.
    pub free_bytes: u64,
    /// Bytes of the heap that were never used.
    pub unused_bytes: u64,
    /// Bytes of blocks and entries that are in use, or that wait for the log's reader.
    pub allocated_bytes: u64,
    /// Bytes of index entries among them, including their inline versions and small values.
    pub entry_bytes: u64,
    /// Bytes of the index's buckets, which are not part of the heap.
    pub bucket_bytes: u64,
    /// Slabs that are being emptied, or wait until no reader can look at them.
    pub evacuating_slabs: u64,
    /// Bytes of values that were moved in order to empty their slabs.
    pub evacuated_bytes: u64,
    /// Slabs that became free because their values were moved.
    pub reclaimed_slabs: u64,
}

impl HeapStats {
    /// Number of free slabs, including those that were never used.
    pub fn free_slabs(&self) -> u64 {
        (self.free_bytes + self.unused_bytes) / u64::from(KDB_SLAB_BYTES)
    }

    /// Bytes of the heap: slabs that are in use, free slabs, and those that were never used.
    pub fn heap_bytes(&self) -> u64 {
        self.slab_bytes + self.free_bytes + self.unused_bytes
    }

    /// Bytes in slabs for each byte that is allocated; 1 is the best.
    pub fn fragmentation_ratio(&self) -> f64 {
        if self.allocated_bytes == 0 { 1.0 } else { self.slab_bytes as f64 / self.allocated_bytes as f64 }
    }
}

impl Partition {
    /// Number of slabs that were ever used.
    pub(crate) fn used_slabs(&self) -> u64 {
        (self.brk() - self.geometry.heap) / u64::from(KDB_SLAB_BYTES)
    }

    /// The word of a slab's descriptor.
    pub(crate) fn slab_word(&self, slab: u64) -> Word {
        Word(self.arena.word(self.geometry.descriptor(slab)).load(Ordering::Acquire))
    }

    /// A field of a descriptor, at `field` bytes from its beginning.
    fn field(&self, slab: u64, field: usize) -> &AtomicU32 {
        let at = self.geometry.descriptor(slab) + field as u64;
        // SAFETY: in bounds (checked by `at`), aligned and mapped as long as `self`; every access is atomic.
        unsafe { AtomicU32::from_ptr(self.arena.at(at)) }
    }

    fn kind_word(&self, slab: u64) -> &AtomicU32 {
        self.field(slab, offset_of!(kdb_slab, kind))
    }

    /// The kind of a slab; valid if the slab's word did not change since before.
    pub(crate) fn slab_kind(&self, slab: u64) -> u32 {
        self.kind_word(slab).load(Ordering::Acquire)
    }

    /// The CPU + 1 that a current slab belongs to.
    pub(crate) fn slab_owner(&self, slab: u64) -> u32 {
        self.field(slab, offset_of!(kdb_slab, owner)).load(Ordering::Acquire)
    }

    fn change(&self, slab: u64, from: Word, to: Word) -> bool {
        let word = self.arena.word(self.geometry.descriptor(slab));
        word.compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Sets the bit of a slab in the bitmap of a kind, or in that of free slabs.
    pub(super) fn set_bit(&self, kind: u32, slab: u64) {
        let word = self.arena.word(self.geometry.bitmap(kind) + slab / 64 * 8);
        word.fetch_or(1 << (slab % 64), Ordering::SeqCst);
    }

    fn never_used_slabs(&self) -> u64 {
        self.geometry.slab_limit().saturating_sub(self.used_slabs())
    }

    /// Number of slabs in each part of the pool.
    fn pool(&self) -> impl Iterator<Item = u64> {
        let words =
            self.arena.words(self.geometry.bitmap(KDB_KIND_FREE), self.geometry.bitmap_words as usize);
        words.iter().map(|word| word.load(Ordering::Relaxed).count_ones().into())
    }

    /// Number of slabs in the pool, plus those that were never used.
    pub(crate) fn free_slabs(&self) -> u64 {
        self.pool().sum::<u64>() + self.never_used_slabs()
    }

    /// The memory of the heap. The search for free blocks ends when `enough` bytes were found.
    pub(crate) fn room(&self, enough: u64) -> Room {
        let slab_bytes = u64::from(KDB_SLAB_BYTES);
        let mut free = self.free_slabs() * slab_bytes;
        for slab in 0..self.used_slabs() {
            if free >= enough {
                break;
            }
            let (word, kind) = (self.slab_word(slab), self.slab_kind(slab).min(KDB_KINDS - 1));
            if word.state() != KDB_SLAB_FREE {
                free += kind_capacity(kind).saturating_sub(word.used()) * kind_bytes(kind);
            }
        }
        Room { total: self.geometry.slab_limit() * slab_bytes, free }
    }

    /// Whether there are so many free slabs. It looks at no more of the pool than necessary, because each operator in a transaction asks.
    pub(crate) fn has_free_slabs(&self, wanted: u64) -> bool {
        let mut found = self.never_used_slabs();
        found >= wanted
            || self.pool().any(|slabs| {
                found += slabs;
                found >= wanted
            })
    }

    /// Gives a current slab of blocks in which nothing is in use to the pool.
    pub(crate) fn free_if_unused(&self, slab: u64) -> bool {
        let word = self.slab_word(slab);
        let unused = word.state() == KDB_SLAB_CURRENT && word.used() == 0;
        if unused
            && self.slab_kind(slab) < KDB_CLASSES
            && self.change(slab, word, word.emptied(KDB_SLAB_FREE))
        {
            self.set_bit(KDB_KIND_FREE, slab);
            return true;
        }
        false
    }

    /// Lets nothing more be allocated from a slab that is in the state seen.
    pub(crate) fn evacuate(&self, slab: u64, seen: Word) -> bool {
        let allowed = matches!(seen.state(), KDB_SLAB_PARTIAL | KDB_SLAB_FULL)
            || seen.state() == KDB_SLAB_CURRENT && seen.used() == 0;
        allowed && self.change(slab, seen, seen.with_state(KDB_SLAB_EVACUATING))
    }

    /// Gives an evacuated slab to the pool. The caller has made sure that no reader looks at it any more.
    pub(crate) fn free_evacuated(&self, slab: u64) {
        let word = self.slab_word(slab);
        debug_assert!(word.state() == KDB_SLAB_EVACUATING && word.used() == 0);
        // Scans assume that every slab of an entries' kind has entries.
        self.kind_word(slab).store(0, Ordering::Release);
        if self.change(slab, word, word.emptied(KDB_SLAB_FREE)) {
            self.set_bit(KDB_KIND_FREE, slab);
        }
    }

    /// Takes a slab that was never used for blocks or entries of a kind; `None` at the memory limit. Nothing else
    /// touches a claimed slab until [`Partition::release_slab`].
    pub(super) fn claim_slab(&self, kind: u32) -> Option<u64> {
        let brk = self.brk_word();
        loop {
            let (at, committed) = (brk.load(Ordering::Relaxed), self.committed());
            let next = at + u64::from(KDB_SLAB_BYTES);
            if next > committed {
                if !self.grow_beyond(committed) {
                    return None;
                }
            } else if brk.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                let slab = self.geometry.slab_of(at);
                self.field(slab, offset_of!(kdb_slab, capacity))
                    .store(kind_capacity(kind) as u32, Ordering::Relaxed);
                self.kind_word(slab).store(kind, Ordering::Relaxed);
                self.store_word(slab, Word::new(KDB_SLAB_CLAIMED, 0, 0, 0));
                return Some(slab);
            }
        }
    }

    /// Gives a claimed slab and its contents to the programs; [`Word::new`] explains `first`.
    pub(super) fn release_slab(&self, slab: u64, kind: u32, first: u64, used: u64, carved: u64) {
        if used == 0 {
            // Scans assume that every slab of an entries' kind has entries.
            self.kind_word(slab).store(0, Ordering::Relaxed);
            self.store_word(slab, Word::new(KDB_SLAB_FREE, 0, 0, 0));
            self.set_bit(KDB_KIND_FREE, slab);
        } else if used == kind_capacity(kind) {
            self.store_word(slab, Word::new(KDB_SLAB_FULL, first, used, carved));
        } else {
            self.store_word(slab, Word::new(KDB_SLAB_PARTIAL, first, used, carved));
            self.set_bit(kind, slab);
        }
    }

    /// Sets the word of a slab that nothing else touches.
    fn store_word(&self, slab: u64, word: Word) {
        self.arena.word(self.geometry.descriptor(slab)).store(word.0, Ordering::Release);
    }

    /// Adds the current use of the heap.
    pub(crate) fn add_heap_stats(&self, stats: &mut HeapStats) {
        let slab_bytes = u64::from(KDB_SLAB_BYTES);
        let slabs = self.used_slabs();
        for slab in 0..slabs {
            let word = self.slab_word(slab);
            let kind = self.slab_kind(slab).min(KDB_KINDS - 1);
            if word.state() == KDB_SLAB_FREE {
                stats.free_bytes += slab_bytes;
                continue;
            }
            let bytes = word.used() * kind_bytes(kind);
            stats.slab_bytes += slab_bytes;
            stats.allocated_bytes += bytes;
            stats.entry_bytes += if kind >= KDB_CLASSES { bytes } else { 0 };
            stats.evacuating_slabs += u64::from(word.state() == KDB_SLAB_EVACUATING);
        }
        stats.unused_bytes += self.geometry.slab_limit().saturating_sub(slabs) * slab_bytes;
        stats.bucket_bytes += u64::from(self.geometry.nbuckets) * 8;
        stats.evacuated_bytes += self.evacuated_bytes();
        stats.reclaimed_slabs += self.reclaimer.reclaimed_slabs();
    }
}
