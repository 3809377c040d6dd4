//! What must be true of the database's memory when no operator runs.

use std::collections::BTreeMap;

use crate::Engine;
use crate::history::History;
use crate::layout::*;
use crate::limits::SESSIONS;
use crate::world;

/// The check of all free memory takes longer than an execution: one of so many has it.
const BLOCKS_EVERY: u64 = 8;

/// An index entry as it is in memory.
#[derive(Clone, Debug)]
struct Entry {
    offset: u32,
    key: u8,
    lock: u64,
    /// Timestamp, block and length of the versions.
    versions: Vec<(u64, u32, u32)>,
}

fn entries() -> Vec<Entry> {
    let config = world::configuration();
    let mut entries = Vec::new();
    for bucket in 0..=u64::from(config.bucket_mask) {
        // SAFETY: within the arena; no task runs.
        let mut offset = unsafe { *world::at::<u64>(world::geometry().buckets + bucket * 8) } as u32;
        while offset != 0 {
            // SAFETY: as above: what chains refer to is checked to be within the arena by `at_heap`.
            let entry = unsafe { &*at_heap::<kdb_entry>(offset) };
            let versions = (0..config.slots)
                .map(|slot| {
                    let at =
                        offset as usize + size_of::<kdb_entry>() + slot as usize * size_of::<kdb_version>();
                    // SAFETY: as above.
                    let version = unsafe { &*at_heap::<kdb_version>(at as u32) };
                    (version.ts, version.block, version.len)
                })
                .filter(|version| version.0 != 0)
                .collect();
            let key_at =
                offset + (size_of::<kdb_entry>() + config.slots as usize * size_of::<kdb_version>()) as u32;
            // SAFETY: as above.
            let key = unsafe { *at_heap::<u8>(key_at) };
            entries.push(Entry { offset, key, lock: entry.lock, versions });
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
    }
    check_log(state.clock, history);
    for entry in entries() {
        assert_eq!(entry.lock, 0, "{entry:x?} is locked: {history:#?}");
        let uncommitted = entry.versions.iter().any(|version| version.0 >> 63 != 0);
        assert!(!uncommitted, "{entry:x?} has an uncommitted version: {history:#?}");
    }
    // Without snapshots, the collector leaves the live keys and nothing else.
    for _ in 0..4 {
        engine.collect(1000);
    }
    world::settle();
    check_collected(history);
    if world::executions() % BLOCKS_EVERY == 0 {
        check_blocks(engine, history);
    }
}

/// The rings hold complete records only, and every commit once.
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
            let complete = (position << 1 | 1) ^ config.seed;
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
    }
    // SAFETY: no other task runs.
    let (superblock, state) = unsafe { (&*world::superblock(), &*world::state()) };
    assert_eq!(superblock.entries as usize, count, "the count of entries is wrong: {history:#?}");
    let live: i64 = state.stats.iter().map(|stats| stats.live_keys).sum();
    assert_eq!(live as usize, count, "the count of keys is wrong: {history:#?}");
}

/// Memory that is in use, and who uses it; panics when two do.
#[derive(Default)]
struct Used(BTreeMap<u32, (u32, String)>);

impl Used {
    fn add(&mut self, offset: u32, bytes: u32, what: &dyn Fn() -> String, history: &History) {
        let geometry = world::geometry();
        let (start, end) = (u64::from(offset), u64::from(offset) + u64::from(bytes));
        assert!(start >= geometry.heap && end <= geometry.end, "{} is not in the heap", what());
        let before = self.0.range(..offset + bytes).next_back();
        if let Some((&other, (other_bytes, by))) = before
            && other + other_bytes > offset
        {
            panic!("{} at {offset} overlaps {by} at {other}: {history:#?}", what());
        }
        self.0.insert(offset, (bytes, what()));
    }
}

/// Takes all memory that the allocator still has: none of it may be in use, or come twice.
fn check_blocks(engine: Engine, history: &History) {
    let mut used = Used::default();
    let long = 100;
    for entry in entries() {
        used.add(entry.offset, KDB_CACHE_LINE, &|| format!("the entry of {}", entry.key), history);
        for &(_, block, len) in &entry.versions {
            if len & KDB_LEN_INLINE == 0 {
                used.add(block, engine.block_bytes(len & KDB_LEN_MASK), &|| "a value".into(), history);
            }
        }
    }
    let mut taken = 0;
    loop {
        let block = engine.alloc(long);
        if block == 0 {
            break;
        }
        used.add(block, engine.block_bytes(long), &|| "a free block".into(), history);
        taken += 1;
        assert!(taken < 100_000, "the allocator does not end");
    }
    for class in 0..8 {
        loop {
            let entry = engine.alloc_entry(class);
            if entry == 0 {
                break;
            }
            used.add(entry, (class + 1) * KDB_CACHE_LINE, &|| "a free entry".into(), history);
        }
    }
}
