//! Finding keys whose expiry has passed, by reading the mapped arena.
//!
//! No snapshot is registered and nothing is locked, so the results are hints: an entry may change, leave,
//! or serve another key meanwhile. The operator that deletes a key decides under the entry's lock.

use std::sync::atomic::Ordering;

use super::{
    Partition,
    format::{entry_bytes, key_of},
    scan::{ENTRY_WORDS, OVERFLOW_AT, SLOTS_AT, entries_in},
};
use crate::{
    KEY_MAX, Result,
    engine::expiry::{ExpiryCursor, Look},
    layout::{KDB_INLINE_VERSIONS, KDB_LEN_EXPIRES, MARKER, kdb_entry},
};

/// A position in the arenas of a database: the next slab to read.
pub(super) struct ArenaCursor<'db> {
    partitions: &'db [Partition],
    partition: usize,
    slab: u64,
}

impl<'db> ArenaCursor<'db> {
    /// A position before the first slab.
    pub(super) fn new(partitions: &'db [Partition]) -> Self {
        ArenaCursor { partitions, partition: 0, slab: 0 }
    }
}

impl ExpiryCursor for ArenaCursor<'_> {
    fn read(&mut self, look: &mut Look) -> Result<bool> {
        match look_at_slab(&self.partitions[self.partition], self.slab, look) {
            Some(next) => self.slab = next,
            None => (self.partition, self.slab) = (self.partition + 1, 0),
        }
        if self.partition < self.partitions.len() {
            return Ok(true);
        }
        self.partition = 0;
        Ok(false)
    }
}

/// Reads the entries of one slab into `look`. Returns the next slab, or `None` after the last one.
fn look_at_slab(partition: &Partition, slab: u64, look: &mut Look) -> Option<u64> {
    if slab >= partition.used_slabs() {
        return None;
    }
    // A slab of entries remains one until this is dropped.
    let _reading = partition.reclaimer.read();
    if let Some((class, carved)) = entries_in(partition, slab) {
        let bytes = entry_bytes(class);
        let start = partition.geometry.slab_start(slab);
        for i in 0..carved {
            let entry = start + i * bytes;
            if let Some(expire_ms) = expiry_of(partition, entry) {
                look.add(expire_ms, || copy_key(partition, entry, bytes));
            }
        }
    }
    Some(slab + 1)
}

/// The expiry of an entry's newest committed version, if it has one.
fn expiry_of(partition: &Partition, entry: u64) -> Option<u64> {
    let (arena, geometry) = (&partition.arena, &partition.geometry);
    let words = arena.words(entry, ENTRY_WORDS);
    let overflow = u64::from(words[OVERFLOW_AT].load(Ordering::Acquire) as u32);
    let more = 2 * (geometry.slots - KDB_INLINE_VERSIONS) as usize;
    // The array may have been freed meanwhile; then its words have arbitrary contents.
    let more = if overflow == 0 || more == 0 { &[] } else { arena.words(overflow, more) };
    let (mut newest_ts, mut version) = (0, 0);
    for slot in words[SLOTS_AT..].chunks_exact(2).chain(more.chunks_exact(2)) {
        let ts = slot[0].load(Ordering::Acquire);
        if ts & MARKER == 0 && ts > newest_ts {
            (newest_ts, version) = (ts, slot[1].load(Ordering::Relaxed));
        }
    }
    let (block, len) = (u64::from(version as u32), (version >> 32) as u32);
    if block == 0 || len & KDB_LEN_EXPIRES == 0 {
        return None;
    }
    if !(geometry.heap + 8..arena.len()).contains(&block) {
        return None;
    }
    let head = geometry.head_of(block, len);
    (head % 8 == 0).then(|| arena.word(head).load(Ordering::Relaxed))
}

/// The key of an entry that takes `bytes`; `None` if the entry has no key any more.
fn copy_key(partition: &Partition, entry: u64, bytes: u64) -> Option<Vec<u8>> {
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
