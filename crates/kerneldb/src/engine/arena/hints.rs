//! Reads index entries without a lock and without a snapshot.
//!
//! The results are hints: an entry may change, leave, or serve another key meanwhile. An operator that acts on one decides
//! again under the entry's lock. The caller is registered with the partition's readers, so a slab of entries stays one.

use std::sync::atomic::Ordering;

use super::{
    Partition,
    format::key_of,
    scan::{ENTRY_WORDS, OVERFLOW_AT, SLOTS_AT},
};
use crate::{
    KEY_MAX,
    layout::{KDB_INLINE_VERSIONS, KDB_LEN_EXPIRES, MARKER, kdb_entry},
};

/// The newest committed version of an entry, unless it is a tombstone.
pub(super) struct Newest {
    pub commit_ts: u64,
    pub block: u64,
    /// Bytes of the value, and `KDB_LEN_*`.
    pub len: u32,
}

/// The newest committed version of an entry.
pub(super) fn newest(partition: &Partition, entry: u64) -> Option<Newest> {
    let (arena, geometry) = (&partition.arena, &partition.geometry);
    let words = arena.words(entry, ENTRY_WORDS);
    let overflow = u64::from(words[OVERFLOW_AT].load(Ordering::Acquire) as u32);
    let more = 2 * (geometry.slots - KDB_INLINE_VERSIONS) as usize;
    // The array may have been freed meanwhile; then its words have arbitrary contents.
    let more = if overflow == 0 || more == 0 { &[] } else { arena.words(overflow, more) };
    let (mut commit_ts, mut version) = (0, 0);
    for slot in words[SLOTS_AT..].chunks_exact(2).chain(more.chunks_exact(2)) {
        let ts = slot[0].load(Ordering::Acquire);
        if ts & MARKER == 0 && ts > commit_ts {
            (commit_ts, version) = (ts, slot[1].load(Ordering::Relaxed));
        }
    }
    let (block, len) = (u64::from(version as u32), (version >> 32) as u32);
    (geometry.heap + 8..arena.len()).contains(&block).then_some(Newest { commit_ts, block, len })
}

/// The expiry of a version in milliseconds since the Unix epoch, if it has one.
pub(super) fn expiry(partition: &Partition, version: &Newest) -> Option<u64> {
    if version.len & KDB_LEN_EXPIRES == 0 {
        return None;
    }
    let head = partition.geometry.head_of(version.block, version.len);
    head.is_multiple_of(8).then(|| partition.arena.word(head).load(Ordering::Relaxed))
}

/// The key of an entry that takes `bytes`; `None` if the entry has no key any more.
pub(super) fn copy_key(partition: &Partition, entry: u64, bytes: u64) -> Option<Vec<u8>> {
    let head: *const kdb_entry = partition.arena.at(entry);
    // SAFETY: in bounds; the field is read whole, whatever it contains by now.
    let klen = usize::from(unsafe { (&raw const (*head).klen).read_volatile() });
    let at = key_of(entry);
    if klen == 0 || klen > KEY_MAX || at + (klen as u64).next_multiple_of(8) > entry + bytes {
        return None;
    }
    let words = partition.arena.words(at, klen.div_ceil(8));
    let mut key: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    key.truncate(klen);
    Some(key)
}
