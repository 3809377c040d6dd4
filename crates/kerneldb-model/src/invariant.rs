//! Invariants of the database's memory when no operator runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::Engine;
use crate::history::History;
use crate::layout::*;
use crate::limits::SESSIONS;
use crate::world;

/// An index entry as it is in memory.
#[derive(Clone, Debug)]
struct Entry {
    offset: u32,
    key: u8,
    lock: u64,
    overflow: u32,
    /// Timestamp, block and length word of the versions.
    versions: Vec<(u64, u32, u32)>,
}

fn entries() -> Vec<Entry> {
    let config = world::configuration();
    let mut entries = Vec::new();
    for bucket in 0..=u64::from(config.bucket_mask) {
        // SAFETY: within the arena; no task runs.
        let mut offset = unsafe { *world::at::<u64>(world::geometry().buckets + bucket * 8) } as u32;
        while offset != 0 {
            // SAFETY: as above: `at_heap` checks that the entries of chains are within the arena.
            let entry = unsafe { &*at_heap::<kdb_entry>(offset) };
            let overflow = entry.overflow;
            let versions = (0..config.slots)
                .filter_map(|slot| {
                    let version: *const kdb_version = match slot.checked_sub(KDB_INLINE_VERSIONS) {
                        None => &raw const entry.v[slot as usize],
                        Some(_) if overflow == 0 => return None,
                        Some(slot) => at_heap(overflow + slot * size_of::<kdb_version>() as u32),
                    };
                    // SAFETY: as above.
                    let version = unsafe { &*version };
                    (version.ts != 0).then_some((version.ts, version.block, version.len))
                })
                .collect();
            // SAFETY: as above.
            let key = unsafe { *at_heap::<u8>(offset + size_of::<kdb_entry>() as u32) };
            entries.push(Entry { offset, key, lock: entry.lock, overflow, versions });
            assert!(entries.len() < 1000, "a chain of the index has a circle");
            offset = entry.next;
        }
    }
    entries
}

fn at_heap<T>(offset: u32) -> *mut T {
    let geometry = world::geometry();
    assert!((geometry.heap..geometry.end).contains(&u64::from(offset)), "offset {offset} is not in the heap");
    world::at(u64::from(offset))
}

/// Checks the history and the memory after all clients have ended. The calling task goes on using the engine.
pub fn check(engine: Engine, history: &History) {
    // SAFETY: no other task runs.
    let state = unsafe { &*world::state() };
    assert_eq!(state.commit_latch, 0, "the commit latch is held: {history:#?}");
    history.check(state.clock);
    assert_eq!(state.active_snapshots, 0, "a snapshot is still counted: {history:#?}");
    assert!(state.snapshots.iter().all(|&slot| slot == 0), "a snapshot is still registered: {history:#?}");
    for session in 0..SESSIONS {
        // SAFETY: no other task runs.
        let context = unsafe { &*world::context(session) };
        assert_eq!(context.state, KDB_TX_NONE, "session {session} is in a transaction: {history:#?}");
        assert_eq!(context.in_use, KDB_CTX_FREE, "session {session} is in use: {history:#?}");
    }
    check_log(state.clock, history);
    for entry in entries() {
        assert_eq!(entry.lock, 0, "{entry:x?} is locked: {history:#?}");
        let uncommitted = entry.versions.iter().any(|version| version.0 >> 63 != 0);
        assert!(!uncommitted, "{entry:x?} has an uncommitted version: {history:#?}");
    }
    check_slabs(engine, &[], history);
    // Without snapshots, and once the log was read, the collector leaves only the live keys.
    engine.drain();
    for _ in 0..4 {
        engine.collect(1000);
    }
    world::settle();
    check_collected(history);
    check_slabs(engine, &[], history);
}

/// Checks that the rings hold complete records only, and every commit once.
fn check_log(clock: u64, history: &History) {
    let config = world::configuration();
    if config.wal == 0 {
        return;
    }
    let mut commits = Vec::new();
    for cpu in 0..u64::from(config.ncpus) {
        // SAFETY: within the arena; no other task runs.
        let ring =
            unsafe { &*world::at::<kdb_ring>(u64::from(config.rings) + cpu * size_of::<kdb_ring>() as u64) };
        assert!(ring.head <= u64::from(ring.size), "the model's ring is too small for the workload");
        let mut position = 0;
        while position < ring.head {
            // SAFETY: as above; the record is within the ring, as far as it was reserved.
            let record = unsafe { &*world::at::<kdb_rec>(u64::from(ring.data) + position) };
            let complete = (position << 1 | 1) ^ config.log_secret;
            assert_eq!(record.state, complete, "a record of the log is not complete: {history:#?}");
            let kind = u32::from(record.type_);
            if [KDB_REC_AUTO_PUT, KDB_REC_AUTO_DEL, KDB_REC_COMMIT, KDB_REC_SKIP].contains(&kind) {
                commits.push(record.stamp);
            }
            position += u64::from(record.size);
        }
    }
    commits.sort_unstable();
    let dense: Vec<u64> = (1..=clock).collect();
    assert_eq!(commits, dense, "the log does not have every commit once: {history:#?}");
}

fn check_collected(history: &History) {
    let entries = entries();
    let mut keys: Vec<u8> = entries.iter().map(|entry| entry.key).collect();
    keys.sort_unstable();
    let count = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), count, "a key has two entries: {entries:x?} {history:#?}");
    for entry in &entries {
        assert_eq!(entry.lock, 0, "the collector left {entry:x?} locked: {history:#?}");
        let live = entry.versions.len() == 1 && entry.versions[0].1 != 0;
        assert!(live, "the collector left garbage in {entry:x?}: {history:#?}");
        assert_eq!(entry.overflow, 0, "the collector left the array of {entry:x?}: {history:#?}");
    }
    // SAFETY: no other task runs.
    let (superblock, state) = unsafe { (&*world::superblock(), &*world::state()) };
    assert_eq!(superblock.entries as usize, count, "the count of entries is wrong: {history:#?}");
    let live: i64 = state.stats.iter().map(|stats| stats.live_keys).sum();
    assert_eq!(live as usize, count, "the count of keys is wrong: {history:#?}");
}

/// The blocks and entries that are referred to, with their uses; panics when one has two uses.
fn used(engine: Engine, held: &[u32], history: &History) -> BTreeMap<u32, &'static str> {
    let mut used = BTreeMap::new();
    let mut add = |offset, what| {
        let before = used.insert(offset, what);
        assert_eq!(before, None, "the block at {offset} is {what}, too: {history:#?}");
    };
    for &block in held {
        add(block, "a block of the caller");
    }
    for entry in entries() {
        add(entry.offset, "an entry");
        if entry.overflow != 0 {
            add(entry.overflow, "an array of versions");
        }
        for &(_, block, len) in &entry.versions {
            if block != 0 && len & KDB_LEN_INLINE == 0 {
                add(engine.block_of(block, len), "a value");
            }
        }
    }
    // SAFETY: no other task runs.
    let superblock = unsafe { &*world::superblock() };
    for mut block in [superblock.deferred_head as u32, superblock.deferred_rest as u32] {
        // The model has no value that fills a slab, so every head is in front of its value.
        while block != 0 {
            add(block - KDB_HEAD_BYTES, "a value that the log's reader may need");
            // SAFETY: as above: a head is in the heap.
            block = unsafe { *at_heap::<u64>(block - KDB_HEAD_BYTES) } as u32;
        }
    }
    used
}

fn count(word: u64, shift: u32) -> u64 {
    word >> shift & u64::from(KDB_WORD_COUNT)
}

/// Whether a slab's bit is set in the bitmap of a kind.
fn has_bit(kind: u32, slab: u64) -> bool {
    let geometry = world::geometry();
    let at = geometry.bitmaps + (u64::from(kind) * geometry.bitmap_words + slab / 64) * 8;
    // SAFETY: within the arena; no other task runs.
    unsafe { *world::at::<u64>(at) >> (slab % 64) & 1 == 1 }
}

/// Checks that the slabs contain exactly the memory in use, each free block once, and that slabs with room are
/// found. `held` are blocks that the caller has allocated. No task may run.
pub fn check_slabs(engine: Engine, held: &[u32], history: &History) {
    let geometry = world::geometry();
    let mut used = used(engine, held, history);
    // SAFETY: no other task runs.
    let brk = unsafe { (*world::superblock()).brk };
    for slab in 0..(brk - geometry.heap) / u64::from(KDB_SLAB_BYTES) {
        check_slab(engine, slab, &mut used, history);
    }
    assert!(used.is_empty(), "these are in no slab: {used:?} {history:#?}");
}

/// Checks a slab, and removes its blocks and entries from `used`.
fn check_slab(engine: Engine, slab: u64, used: &mut BTreeMap<u32, &'static str>, history: &History) {
    let geometry = world::geometry();
    let start = (geometry.heap + slab * u64::from(KDB_SLAB_BYTES)) as u32;
    // SAFETY: within the arena; no other task runs.
    let descriptor = unsafe { *world::at::<kdb_slab>(geometry.slabs + slab * size_of::<kdb_slab>() as u64) };
    let (word, kind) = (descriptor.word, descriptor.kind);
    let state = (word >> KDB_WORD_STATE_SHIFT & 7) as u32;
    let (in_use, carved) = (count(word, KDB_WORD_USED_SHIFT), count(word, KDB_WORD_CARVED_SHIFT));
    let what = || format!("slab {slab}, {descriptor:x?} in state {state}");
    let bytes = engine.kind_bytes(kind);
    let mut here = used.split_off(&start);
    used.append(&mut here.split_off(&(start + KDB_SLAB_BYTES)));
    assert_eq!(here.len() as u64, in_use, "{} is miscounted, it has {here:?}: {history:#?}", what());
    for (&offset, use_) in &here {
        let is_block = (offset - start).is_multiple_of(bytes) && u64::from((offset - start) / bytes) < carved;
        assert!(is_block, "{use_} at {offset} is no block of {}: {history:#?}", what());
        assert_eq!(*use_ == "an entry", kind >= KDB_CLASSES, "{use_} is in {}: {history:#?}", what());
    }
    // Blocks that are freed in a slab that is being emptied are not linked.
    if state != KDB_SLAB_EVACUATING {
        let link = if kind < KDB_CLASSES { 0 } else { 8 };
        let mut free = BTreeSet::new();
        let mut first = (word & u64::from(KDB_WORD_FIRST)) as u32;
        while first != 0 {
            let offset = start + (first - 1) * KDB_GRAIN;
            assert!(free.insert(offset), "the free list of {} has a circle: {history:#?}", what());
            assert!(!here.contains_key(&offset), "{offset} in {} is used and free: {history:#?}", what());
            // SAFETY: as above: the link of a block in the heap.
            first = unsafe { *at_heap::<u32>(offset + link) } & KDB_WORD_FIRST;
        }
        assert_eq!(free.len() as u64 + in_use, carved, "{} has lost blocks: {history:#?}", what());
    }
    let found = match state {
        KDB_SLAB_FREE => word & !(u64::MAX << KDB_WORD_TAG_SHIFT) == 0 && has_bit(KDB_KIND_FREE, slab),
        KDB_SLAB_CURRENT => current_of(descriptor.owner, kind) == slab as u32 + 1,
        KDB_SLAB_PARTIAL => has_bit(kind, slab),
        KDB_SLAB_FULL => in_use == u64::from(descriptor.capacity),
        KDB_SLAB_EVACUATING => true,
        _ => false,
    };
    assert!(found, "nobody would find the room of {}: {history:#?}", what());
}

/// The number of a processor's current slab for a kind. Both are counted from 1, as in memory.
fn current_of(owner: u32, kind: u32) -> u32 {
    let config = world::configuration();
    assert!((1..=config.ncpus).contains(&owner), "a current slab has no owner");
    let at = u64::from(config.cpus) + u64::from(owner - 1) * size_of::<kdb_cpu_alloc>() as u64;
    // SAFETY: within the arena; no other task runs.
    unsafe { (*world::at::<kdb_cpu_alloc>(at)).current[kind as usize] }
}
