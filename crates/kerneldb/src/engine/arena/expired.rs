//! Finding keys whose expiry has passed, by reading the mapped arena.
//!
//! The results are hints (`hints.rs`). The operator that deletes a key decides under the entry's lock.

use super::{
    Partition,
    format::entry_bytes,
    hints::{copy_key, expiry, newest},
    scan::entries_in,
};
use crate::{
    Result,
    engine::expiry::{ExpiryCursor, Look},
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
            let version = newest(partition, entry);
            if let Some(expire_ms) = version.and_then(|version| expiry(partition, &version)) {
                look.add(expire_ms, || copy_key(partition, entry, bytes));
            }
        }
    }
    Some(slab + 1)
}
