//! Checks every invariant of the mapped arenas.
//!
//! The database must be quiet: no operator runs and no transaction is open during the verification. Every byte of the
//! heap is accounted for. It is in a free slab, or it belongs to exactly one of these: an index entry, a value of a
//! version, an array of versions, a free list, or the rest of a slab that was never handed out. The counts, states and
//! bitmaps of the slabs agree with that.

use std::{collections::HashMap, mem::offset_of};

use super::{
    Partition,
    format::{cells, entry_bytes, key_of},
    size::{kind_bytes, kind_capacity},
    slab::Word,
};
use crate::{
    Error, Result,
    engine::{control::Control, storage::Verified},
    layout::{
        KDB_CELLS, KDB_CLASSES, KDB_HEAD_BYTES, KDB_HEADED_MAX, KDB_INLINE_VERSIONS, KDB_KIND_FREE,
        KDB_KINDS, KDB_LEN_CELL_SHIFT, KDB_LEN_HEAD, KDB_LEN_INLINE, KDB_LEN_MASK, KDB_SLAB_BYTES,
        KDB_SLAB_CURRENT, KDB_SLAB_EVACUATING, KDB_SLAB_FREE, KDB_SLAB_FULL, KDB_SLAB_PARTIAL, KDB_SUPER_OFF,
        MARKER, kdb_arena, kdb_cpu_alloc, kdb_entry, kdb_version,
    },
};

/// Pieces of the heap by offset: size and description.
type Pieces = HashMap<u64, (u64, &'static str)>;

/// Checks all partitions of a quiet database.
pub(super) fn verify(control: &Control, partitions: &[Partition]) -> Result<Verified> {
    let clock = control.state().clock.load(std::sync::atomic::Ordering::SeqCst);
    let mut total = Verified::default();
    for (index, partition) in partitions.iter().enumerate() {
        let fail = |text: String| Error::Corrupt(format!("partition {index}: {text}"));
        let mut pieces = Pieces::new();
        let mut checker = Checker {
            control,
            partition,
            index: index as u32,
            clock,
            pieces: &mut pieces,
            used: HashMap::new(),
        };
        let found = checker.index_and_versions().map_err(fail)?;
        checker.deferred().map_err(fail)?;
        let free = checker.slabs().map_err(fail)?;
        checker.coverage().map_err(fail)?;
        checker.current_slabs().map_err(fail)?;
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
    /// Blocks or entries in use by slab.
    used: HashMap<u64, u64>,
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
                let key = unsafe { self.partition.arena.bytes(key_of(entry), usize::from(klen)) };
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
                let Some(cells) = cells(entry, u64::from(klen), class.into()) else {
                    return Err(format!("entry {entry:#x} has the wrong size class"));
                };
                let bytes = entry_bytes(class.into());
                let kind = self.claim_used(entry, "an entry")?;
                if kind != KDB_CLASSES + u32::from(class) {
                    return Err(format!("entry {entry:#x} is in a slab of another kind"));
                }
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
        let overflow = u64::from(self.word(entry + offset_of!(kdb_entry, overflow) as u64) as u32);
        let inline = entry + offset_of!(kdb_entry, v) as u64;
        let slot_bytes = size_of::<kdb_version>() as u64;
        let mut slots: Vec<u64> = (0..KDB_INLINE_VERSIONS.into()).map(|i| inline + i * slot_bytes).collect();
        let before = found.versions;
        if overflow != 0 {
            let more = self.partition.geometry.slots - KDB_INLINE_VERSIONS;
            let kind = self.claim_used(overflow, "an array of versions")?;
            if kind >= KDB_CLASSES || kind_bytes(kind) < u64::from(more) * slot_bytes {
                return Err(format!("entry {entry:#x} has an array of versions that is too small"));
            }
            found.used_bytes += kind_bytes(kind);
            slots.extend((0..u64::from(more)).map(|i| overflow + i * slot_bytes));
        }
        for at in slots {
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
                if u64::from(block) != cells + cell * size || u64::from(len & KDB_LEN_MASK) > size {
                    return Err(format!("entry {entry:#x} has a value beside its cells"));
                }
                if std::mem::replace(&mut used[cell as usize], true) {
                    return Err(format!("entry {entry:#x} has two versions in one cell"));
                }
            } else if block != 0 {
                let bytes = len & KDB_LEN_MASK;
                let headed = len & KDB_LEN_HEAD != 0 && bytes <= KDB_HEADED_MAX;
                let head = if headed { KDB_HEAD_BYTES } else { 0 };
                let kind = self.claim_used(u64::from(block - head), "a value's block")?;
                if kind >= KDB_CLASSES || kind_bytes(kind) < u64::from(head + bytes) {
                    return Err(format!("entry {entry:#x} has a value in a block that is too small"));
                }
                found.used_bytes += kind_bytes(kind);
            }
            if ts > newest {
                (newest, live) = (ts, block != 0);
            }
            found.versions += 1;
        }
        if overflow != 0 && found.versions - before <= u64::from(KDB_INLINE_VERSIONS) {
            return Err(format!("entry {entry:#x} has an array of versions that it does not need"));
        }
        found.keys += u64::from(live);
        Ok(())
    }

    /// Claims the blocks that wait for the log's reader.
    fn deferred(&mut self) -> Check<()> {
        for field in [offset_of!(kdb_arena, deferred_head), offset_of!(kdb_arena, deferred_rest)] {
            let mut link = self.word(u64::from(KDB_SUPER_OFF) + field as u64);
            while link != 0 {
                let (block, fills_slab) = (link & 0xffff_ffff, link >> 32 != 0);
                let start = if fills_slab { block } else { block - u64::from(KDB_HEAD_BYTES) };
                self.claim_used(start, "a block that waits for the log")?;
                let len = if fills_slab { KDB_SLAB_BYTES } else { 0 };
                link = self.word(self.partition.geometry.head_of(block, len));
            }
        }
        Ok(())
    }

    /// Claims a block or an entry in use; returns the kind of its slab.
    fn claim_used(&mut self, offset: u64, what: &'static str) -> Check<u32> {
        let geometry = &self.partition.geometry;
        if offset < geometry.heap || offset >= self.partition.brk() {
            return Err(format!("{what} at {offset:#x} is outside of the heap"));
        }
        let slab = geometry.slab_of(offset);
        let kind = self.partition.slab_kind(slab);
        let word = self.partition.slab_word(slab);
        if kind >= KDB_KINDS || word.state() == KDB_SLAB_FREE {
            return Err(format!("{what} at {offset:#x} is in a free slab"));
        }
        let at = offset - geometry.slab_start(slab);
        if !at.is_multiple_of(kind_bytes(kind)) || at / kind_bytes(kind) >= word.carved() {
            return Err(format!("{what} at {offset:#x} is no block of its slab"));
        }
        *self.used.entry(slab).or_default() += 1;
        self.claim(offset, kind_bytes(kind), what)?;
        Ok(kind)
    }

    /// Checks every slab's descriptor and its bits, and claims the free memory in it; returns the free bytes.
    fn slabs(&mut self) -> Check<u64> {
        let mut free = 0;
        for slab in 0..self.partition.geometry.slab_count() {
            let (word, kind) = (self.partition.slab_word(slab), self.partition.slab_kind(slab));
            let unused = slab >= self.partition.used_slabs();
            let is_free = word.state() == KDB_SLAB_FREE;
            if self.bit(KDB_KIND_FREE, slab) != (is_free && !unused) {
                return Err(format!("slab {slab} and the bitmap of free slabs disagree"));
            }
            if is_free {
                if word.used() != 0 || word.carved() != 0 || word.first().is_some() {
                    return Err(format!("slab {slab} is free and in use"));
                }
                if !unused {
                    self.claim(
                        self.partition.geometry.slab_start(slab),
                        KDB_SLAB_BYTES.into(),
                        "a free slab",
                    )?;
                    free += u64::from(KDB_SLAB_BYTES);
                }
                continue;
            }
            if unused || kind >= KDB_KINDS {
                return Err(format!("slab {slab} has no kind, or was never used"));
            }
            if word.state() == KDB_SLAB_PARTIAL && !self.bit(kind, slab) {
                return Err(format!("slab {slab} has room that nobody can find"));
            }
            free += self.slab(slab, word, kind)?;
        }
        Ok(free)
    }

    /// Checks a slab in use and claims the free memory in it; returns the free bytes.
    fn slab(&mut self, slab: u64, word: Word, kind: u32) -> Check<u64> {
        let (start, bytes) = (self.partition.geometry.slab_start(slab), kind_bytes(kind));
        let used = self.used.get(&slab).copied().unwrap_or_default();
        if word.used() != used {
            return Err(format!("{used} blocks of slab {slab} are in use, {} counted", word.used()));
        }
        if word.carved() > kind_capacity(kind) {
            return Err(format!("slab {slab} has more blocks than fit"));
        }
        let never = kind_capacity(kind) - word.carved();
        let mut free = 0;
        match word.state() {
            KDB_SLAB_EVACUATING => {
                // Blocks freed during the evacuation are in no list, so the free blocks are known only if all blocks
                // are free.
                if used == 0 {
                    self.claim(start, KDB_SLAB_BYTES.into(), "an evacuated slab")?;
                }
                return Ok((kind_capacity(kind) - used) * bytes);
            }
            KDB_SLAB_CURRENT | KDB_SLAB_PARTIAL | KDB_SLAB_FULL => {}
            state => return Err(format!("slab {slab} is in the state {state}")),
        }
        let link = if kind < KDB_CLASSES { 0 } else { 8 };
        let mut next = word.first();
        while let Some(at) = next {
            if free == word.carved() - used {
                return Err(format!("slab {slab} has more free blocks than it lacks"));
            }
            self.claim(start + at, bytes, "a free block")?;
            free += 1;
            next = Word(self.word(start + at + link)).first();
        }
        if free + used != word.carved() {
            return Err(format!("{} blocks of slab {slab} are lost", word.carved() - used - free));
        }
        if word.state() == KDB_SLAB_FULL && free + never > 0 {
            return Err(format!("slab {slab} is said to be full and is not"));
        }
        Ok((free + never) * bytes)
    }

    fn bit(&self, kind: u32, slab: u64) -> bool {
        self.word(self.partition.geometry.bitmap(kind) + slab / 64 * 8) >> (slab % 64) & 1 != 0
    }

    /// Checks that every current slab belongs to one CPU.
    fn current_slabs(&self) -> Check<()> {
        let mut owned = HashMap::new();
        for cpu in 0..u64::from(self.partition.geometry.ncpus) {
            for kind in 0..KDB_KINDS {
                let at = self.partition.geometry.cpus
                    + cpu * size_of::<kdb_cpu_alloc>() as u64
                    + u64::from(kind) * 4;
                let number = (self.word(at / 8 * 8) >> (at % 8 * 8)) as u32;
                let Some(slab) = u64::from(number).checked_sub(1) else { continue };
                // The slab may have been taken from the CPU, which has not noticed yet.
                let held = self.partition.slab_word(slab).state() == KDB_SLAB_CURRENT
                    && self.partition.slab_kind(slab) == kind
                    && self.partition.slab_owner(slab) == cpu as u32 + 1;
                if held && owned.insert(slab, cpu).is_some() {
                    return Err(format!("slab {slab} is current twice"));
                }
            }
        }
        let current = |slab: &u64| self.partition.slab_word(*slab).state() == KDB_SLAB_CURRENT;
        match (0..self.partition.used_slabs()).filter(current).find(|slab| !owned.contains_key(slab)) {
            Some(slab) => Err(format!("slab {slab} is no CPU's, and current")),
            None => Ok(()),
        }
    }

    /// Checks that no two pieces overlap, and that every slab that was ever used has a piece. A gap is only the rest at
    /// a slab's end.
    fn coverage(&self) -> Check<()> {
        let geometry = &self.partition.geometry;
        let mut pieces: Vec<_> = self.pieces.iter().map(|(at, (bytes, what))| (*at, *bytes, *what)).collect();
        pieces.sort_unstable();
        let (mut end, mut slabs) = (geometry.heap, 0);
        for (at, bytes, what) in pieces {
            if at < end {
                return Err(format!("{what} at {at:#x} overlaps what is before it"));
            }
            let slab = geometry.slab_of(at);
            if slab > slabs {
                return Err(format!("slab {slabs} is lost"));
            }
            slabs = slab + 1;
            end = at + bytes;
        }
        if slabs < self.partition.used_slabs() { Err(format!("slab {slabs} is lost")) } else { Ok(()) }
    }

    fn word(&self, offset: u64) -> u64 {
        self.partition.arena.word(offset).load(std::sync::atomic::Ordering::Relaxed)
    }
}
