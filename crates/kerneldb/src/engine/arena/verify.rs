//! Checks every invariant of the mapped arenas.
//!
//! The database must be quiet: no operator runs and no transaction is open while this looks. Every byte of
//! the heap is accounted for: it belongs to exactly one index entry, one value block of a version, one free
//! list, or the uncarved rest of a slab.

use std::{collections::HashMap, mem::offset_of};

use super::{Partition, format::Geometry};
use crate::{
    Error, Result,
    engine::{control::Control, storage::Verified},
    layout::{
        KDB_CELLS, KDB_CLASSES, KDB_LEN_CELL_SHIFT, KDB_LEN_INLINE, KDB_LEN_MASK, KDB_SLAB_BYTES,
        KDB_SUPER_OFF, MARKER, kdb_arena, kdb_block, kdb_cpu_alloc, kdb_entry, kdb_freelist, kdb_version,
    },
};

/// Longest value of a size class.
fn class_max(class: u64) -> u64 {
    if class < 8 {
        return (class + 1) * 16;
    }
    let (power, quarter) = ((class - 8) / 4 + 7, (class - 8) % 4);
    (1 << power) + ((quarter + 1) << (power - 2))
}

/// Bytes in a block of a size class; the same as `block_bytes()` in `bpf/engine/arena/alloc.h`.
fn block_bytes(class: u64) -> u64 {
    class_max(class) + 16
}

/// Size class of a value; the same as `size_class()` there.
fn size_class(len: u64) -> u64 {
    (0..u64::from(KDB_CLASSES)).find(|c| class_max(*c) >= len).unwrap_or(u64::from(KDB_CLASSES))
}

/// Pieces of the heap by offset: size and what they are.
type Pieces = HashMap<u64, (u64, &'static str)>;

/// Checks all partitions of a quiet database.
pub(super) fn verify(control: &Control, partitions: &[Partition]) -> Result<Verified> {
    let clock = control.state().clock.load(std::sync::atomic::Ordering::SeqCst);
    let mut total = Verified::default();
    for (index, partition) in partitions.iter().enumerate() {
        let fail = |text: String| Error::Corrupt(format!("partition {index}: {text}"));
        let mut pieces = Pieces::new();
        let mut checker = Checker { control, partition, index: index as u32, clock, pieces: &mut pieces };
        let found = checker.index_and_versions().map_err(fail)?;
        let free = checker.free_memory().map_err(fail)?;
        checker.coverage().map_err(fail)?;
        if found.entries != partition.entries() {
            return Err(fail(format!(
                "{} entries are linked, {} counted",
                found.entries,
                partition.entries()
            )));
        }
        total.entries += found.entries;
        total.keys += found.keys;
        total.versions += found.versions;
        total.used_bytes += found.used_bytes;
        total.free_bytes += free;
        total.longest_chain = total.longest_chain.max(found.longest_chain);
    }
    Ok(total)
}

struct Checker<'a> {
    control: &'a Control,
    partition: &'a Partition,
    index: u32,
    clock: u64,
    pieces: &'a mut Pieces,
}

type Check<T> = std::result::Result<T, String>;

impl Checker<'_> {
    fn claim(&mut self, offset: u64, bytes: u64, what: &'static str) -> Check<()> {
        let heap = self.partition.geometry.heap..self.partition.brk();
        if !heap.contains(&offset) || offset + bytes > heap.end {
            return Err(format!("{what} at {offset:#x} is outside of the heap"));
        }
        match self.pieces.insert(offset, (bytes, what)) {
            None => Ok(()),
            Some((_, other)) => Err(format!("{what} and {other} are both at {offset:#x}")),
        }
    }

    fn index_and_versions(&mut self) -> Check<Verified> {
        let geometry = self.partition.geometry;
        let mut found = Verified::default();
        for bucket in 0..u64::from(geometry.nbuckets) {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            let mut entry = u64::from(self.word(geometry.buckets + bucket * 8) as u32);
            while entry != 0 {
                let head: *const kdb_entry = self.partition.arena.at(entry);
                // SAFETY: in bounds, and nothing changes the arena by contract.
                let (lock, next, hash, klen, class) =
                    unsafe { ((*head).lock, (*head).next, (*head).hash, (*head).klen, (*head).class_) };
                if lock != 0 {
                    return Err(format!("entry {entry:#x} is locked ({lock:#x})"));
                }
                // SAFETY: as above; `bytes` checks the bounds.
                let key = unsafe { self.partition.arena.bytes(geometry.key_of(entry), usize::from(klen)) };
                let full = self.control.hash_of(key);
                if full as u32 != hash || u64::from(hash & (geometry.nbuckets - 1)) != bucket {
                    return Err(format!("entry {entry:#x} is in the wrong bucket"));
                }
                if self.control.partition_of(key) != self.index {
                    return Err(format!("entry {entry:#x} is in the wrong partition"));
                }
                if keys.iter().any(|k| k == key) {
                    return Err(format!("a key has two entries, one at {entry:#x}"));
                }
                keys.push(key.to_vec());
                let bytes = Geometry::entry_bytes(u64::from(class));
                let Some(cells) = geometry.cells(entry, u64::from(klen), u64::from(class)) else {
                    return Err(format!("entry {entry:#x} has the wrong size class"));
                };
                let slab = (entry - geometry.heap) / u64::from(KDB_SLAB_BYTES);
                let kinds = self.word(geometry.slabs + slab / 8 * 8).to_le_bytes();
                if u64::from(kinds[(slab % 8) as usize]) != u64::from(class) + 1 {
                    return Err(format!("entry {entry:#x} is in a slab of another kind"));
                }
                self.claim(entry, bytes, "an entry")?;
                found.entries += 1;
                found.used_bytes += bytes;
                self.versions(entry, cells, &mut found)?;
                entry = u64::from(next);
            }
            found.longest_chain = found.longest_chain.max(keys.len() as u64);
        }
        Ok(found)
    }

    /// Checks the versions of an entry, whose cells lie at an offset and have a size.
    fn versions(&mut self, entry: u64, (cells, size): (u64, u64), found: &mut Verified) -> Check<()> {
        let (mut newest, mut live) = (0, false);
        let mut seen = Vec::new();
        let mut used = [false; KDB_CELLS as usize];
        for i in 0..u64::from(self.partition.geometry.slots) {
            let at = entry + size_of::<kdb_entry>() as u64 + i * size_of::<kdb_version>() as u64;
            let slot: *const kdb_version = self.partition.arena.at(at);
            // SAFETY: in bounds, and nothing changes the arena by contract.
            let (ts, block, len) = unsafe { ((*slot).ts, (*slot).block, (*slot).len) };
            if ts == 0 {
                continue;
            }
            if ts & MARKER != 0 {
                return Err(format!("entry {entry:#x} has an uncommitted version"));
            }
            let unordered = self.control.config.versions == 1 && self.control.config.wal_ring_bytes == 0;
            if ts > self.clock && !unordered || seen.contains(&ts) {
                return Err(format!("entry {entry:#x} has a version with an impossible timestamp {ts}"));
            }
            seen.push(ts);
            if block != 0 && len & KDB_LEN_INLINE != 0 {
                let cell = u64::from(len >> KDB_LEN_CELL_SHIFT & 1);
                let data = u64::from(block) + size_of::<kdb_block>() as u64;
                if data != cells + cell * size || u64::from(len & KDB_LEN_MASK) > size {
                    return Err(format!("entry {entry:#x} has a value beside its cells"));
                }
                if std::mem::replace(&mut used[cell as usize], true) {
                    return Err(format!("entry {entry:#x} has two versions in one cell"));
                }
            } else if block != 0 {
                let bytes = block_bytes(size_class(u64::from(len & KDB_LEN_MASK)));
                self.claim(u64::from(block), bytes, "a value block")?;
                found.used_bytes += bytes;
            }
            if ts > newest {
                (newest, live) = (ts, block != 0);
            }
            found.versions += 1;
        }
        found.keys += u64::from(live);
        Ok(())
    }

    /// Claims all free blocks and rests of slabs; returns their bytes.
    fn free_memory(&mut self) -> Check<u64> {
        let mut free = 0;
        for cpu in 0..u64::from(self.partition.geometry.ncpus) {
            let lists = self.partition.geometry.cpus + cpu * size_of::<kdb_cpu_alloc>() as u64;
            for list in 0..2 * u64::from(KDB_CLASSES) {
                let link = if list < u64::from(KDB_CLASSES) { 0 } else { 8 };
                let class = list % u64::from(KDB_CLASSES);
                let bytes = if link == 0 { block_bytes(class) } else { Geometry::entry_bytes(class) };
                let at = lists + list * size_of::<kdb_freelist>() as u64;
                let mut block = u64::from(self.word(at) as u32);
                while block != 0 {
                    self.claim(block, bytes, "a free block")?;
                    free += bytes;
                    block = u64::from(self.word(block + link) as u32);
                }
                let slab = self.word(at + 8);
                for i in 0..slab >> 32 {
                    self.claim(u64::from(slab as u32) + i * bytes, bytes, "a slab's rest")?;
                    free += bytes;
                }
            }
        }
        Ok(free + self.limbo()?)
    }

    /// Claims the blocks that wait for the log's reader; returns their bytes.
    fn limbo(&mut self) -> Check<u64> {
        let mut free = 0;
        for field in [offset_of!(kdb_arena, limbo_head), offset_of!(kdb_arena, limbo_rest)] {
            let mut block = self.word(u64::from(KDB_SUPER_OFF) + field as u64);
            while block != 0 {
                let link = self.word(block);
                let bytes = block_bytes(link >> 32);
                self.claim(block, bytes, "a block in limbo")?;
                free += bytes;
                block = link & 0xffff_ffff;
            }
        }
        Ok(free)
    }

    /// No two pieces overlap, and gaps are only what is left over at the end of slabs.
    fn coverage(&self) -> Check<()> {
        let mut pieces: Vec<_> = self.pieces.iter().map(|(at, (bytes, what))| (*at, *bytes, *what)).collect();
        pieces.sort_unstable();
        let mut end = self.partition.geometry.heap;
        for (at, bytes, what) in pieces {
            if at < end {
                return Err(format!("{what} at {at:#x} overlaps what is before it"));
            }
            if at - end >= u64::from(KDB_SLAB_BYTES) {
                return Err(format!("{} bytes before {at:#x} are lost", at - end));
            }
            end = at + bytes;
        }
        let lost = self.partition.brk() - end;
        if lost >= u64::from(KDB_SLAB_BYTES) {
            return Err(format!("{lost} bytes at the end of the heap are lost"));
        }
        Ok(())
    }

    fn word(&self, offset: u64) -> u64 {
        self.partition.arena.word(offset).load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_sizes_tightly() {
        for len in 0..=65_536 {
            let class = size_class(len);
            assert!(block_bytes(class) >= len + size_of::<kdb_block>() as u64);
            assert!(class == 0 || class_max(class - 1) < len);
            assert!(block_bytes(class) <= len.max(64) * 5 / 4 + 32, "{len}");
        }
        assert_eq!(block_bytes(size_class(1024)), 1040);
        assert!(size_class(65_536) < u64::from(KDB_CLASSES));
    }
}
