//! The keys of a partition as eviction sees them. A piece is a slab.
//!
//! The results are hints (`hints.rs`). The operator that evicts a key decides under the entry's lock.

use std::{
    mem::offset_of,
    sync::atomic::{AtomicU8, Ordering},
};

use super::{
    Partition,
    format::entry_bytes,
    hints::{Newest, copy_key, expiry, newest},
    scan::entries_in,
    size::{class_bytes, size_class},
};
use crate::{
    Result,
    engine::eviction::{Candidate, EvictionSource, FoundKey},
    layout::{KDB_HEAD_BYTES, KDB_LEN_HEAD, KDB_LEN_INLINE, KDB_LEN_MASK, kdb_entry},
};

/// The keys of one partition.
pub(super) struct ArenaCandidates<'db>(pub &'db Partition);

impl EvictionSource for ArenaCandidates<'_> {
    fn pieces(&self) -> u64 {
        self.0.used_slabs()
    }

    fn has_keys(&self, slab: u64) -> bool {
        entries_in(self.0, slab).is_some_and(|_| self.0.slab_word(slab).used() > 0)
    }

    fn read(&mut self, slab: u64, found: FoundKey<'_>) -> Result<u64> {
        read_entries(self.0, slab, |_| (0, 1), found);
        Ok(slab + 1)
    }

    fn sample(&mut self, slab: u64, keys: u64, random: u64, found: FoundKey<'_>) -> Result<()> {
        let step = |entries: u64| entries.div_ceil(keys).max(1);
        read_entries(self.0, slab, |entries| (random % step(entries), step(entries)), found);
        Ok(())
    }

    fn update_usage(&self, slab: u64, change: &mut dyn FnMut(u8) -> u8) {
        let partition = self.0;
        let _reading = partition.reclaimer.read();
        let Some((class, carved)) = entries_in(partition, slab) else { return };
        for entry in entries(partition, slab, class, carved) {
            let byte = usage(partition, entry);
            let before = byte.load(Ordering::Relaxed);
            let after = change(before);
            if after != before {
                // If an operator has changed the byte meanwhile, the key was used, and its usage is right.
                let _ = byte.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

/// Calls `found` with some keys of a slab. `which` returns the first entry and the distance to each further one, given the number
/// of entries.
fn read_entries(partition: &Partition, slab: u64, which: impl Fn(u64) -> (u64, u64), found: FoundKey<'_>) {
    // A slab of entries remains one until this is dropped.
    let _reading = partition.reclaimer.read();
    let Some((class, carved)) = entries_in(partition, slab) else { return };
    let bytes = entry_bytes(class);
    let (first, step) = which(carved);
    for entry in entries(partition, slab, class, carved).skip(first as usize).step_by(step as usize) {
        let Some(version) = newest(partition, entry) else { continue };
        let candidate = Candidate {
            usage: usage(partition, entry).load(Ordering::Relaxed),
            expire_at_ms: expiry(partition, &version),
            commit_ts: version.commit_ts,
            bytes: bytes + block_bytes(&version),
        };
        found(candidate, &|| copy_key(partition, entry, bytes));
    }
}

/// The entries that were ever created in a slab.
fn entries(partition: &Partition, slab: u64, class: u32, carved: u64) -> impl Iterator<Item = u64> {
    let start = partition.geometry.slab_start(slab);
    (0..carved).map(move |i| start + i * entry_bytes(class))
}

fn usage(partition: &Partition, entry: u64) -> &AtomicU8 {
    // SAFETY: in bounds (checked by `at`) and mapped as long as the partition; user space accesses the byte atomically only.
    unsafe { AtomicU8::from_ptr(partition.arena.at(entry + offset_of!(kdb_entry, usage) as u64)) }
}

/// Bytes of the value's block; 0 if the value is in its entry.
fn block_bytes(version: &Newest) -> u64 {
    if version.len & KDB_LEN_INLINE != 0 {
        return 0;
    }
    let head = if version.len & KDB_LEN_HEAD != 0 { u64::from(KDB_HEAD_BYTES) } else { 0 };
    let bytes = u64::from(version.len & KDB_LEN_MASK) + head;
    class_bytes(size_class(bytes.clamp(1, u64::from(crate::layout::KDB_SLAB_BYTES))))
}
