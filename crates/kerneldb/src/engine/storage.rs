//! The interface of storage engines: it separates the memory that holds the data from everything above.
//!
//! The operators write (`bpf/engine/`), except in recovery, when no operator runs. A storage engine in user space sizes
//! and grows the memory, reads registered snapshots, consumes the log, and verifies.

use std::time::Duration;

use super::{
    arena::{HeapStats, Loader},
    control::Control,
    eviction::EvictionSource,
    expiry::ExpiryCursor,
    log::TxnSink,
    memory_wait::MemoryPressure,
};
use crate::{Error, Result, bpf::GracePeriod, layout::kdb_config, stats::Stats};

/// One key of a snapshot, borrowed from the storage engine.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotItem<'a> {
    /// Key bytes.
    pub key: &'a [u8],
    /// Value bytes.
    pub value: &'a [u8],
    /// Absolute expiry in milliseconds since the Unix epoch.
    pub expire_at_ms: Option<u64>,
    /// Commit timestamp of the version.
    pub commit_ts: u64,
}

/// Counts of a successful verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Index entries.
    pub entries: u64,
    /// Keys with a value.
    pub keys: u64,
    /// Versions, including the current ones.
    pub versions: u64,
    /// Bytes in entries and blocks that are in use.
    pub used_bytes: u64,
    /// Bytes in free slabs, on free lists and in the rests of slabs.
    pub free_bytes: u64,
    /// Index entries in the longest hash chain (arena engine; the hash-map engine reports 0).
    pub longest_chain: u64,
}

/// Method by which [`crate::Database::dump_hash_maps`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpMethod {
    /// Two system calls an element (next key, lookup): the paper's checkpoint (4.3, 6.6).
    EntryByEntry,
    /// One system call for about a thousand elements.
    Batched,
}

/// The memory of a partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Bytes that keys and values may take.
    pub total: u64,
    /// Bytes that are free. If they are more than the caller asked for, it is a lower bound.
    pub free: u64,
}

/// Runs the program that moves values out of a slab, given the slab's number.
pub(crate) type Evacuate<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// A storage engine with the data of one database. All methods may be called from several threads at once.
pub(crate) trait Storage: Send + Sync {
    /// Number of partitions; the programs are loaded once for each of them.
    fn partitions(&self) -> u32;

    /// The constants of the programs that work on a partition.
    fn constants(&self, partition: u32) -> kdb_config;

    /// Maps that further objects on the same data share, besides those that both engines have.
    fn maps(&self) -> &'static [&'static str];

    /// A map that only objects for the other engine have.
    fn foreign_map(&self) -> &'static str;

    /// Whether memory should be made available in a partition before a transaction writes to it.
    fn wants_memory(&self, partition: u32) -> bool;

    /// Makes memory available in a partition; false at the limit.
    fn grow(&self, partition: u32) -> bool;

    /// Makes memory available in a partition that was out of it when `seen` bytes were [committed](Self::committed), at
    /// the nth attempt of one operation; false if another attempt is useless.
    fn grow_beyond(&self, partition: u32, seen: u64, attempt: u32) -> bool;

    /// Bytes backed by memory in a partition.
    fn committed(&self, partition: u32) -> u64;

    /// Backs `bytes` of each partition's heap with memory now.
    fn prefault(&self, bytes: u64);

    /// The state of the memory for a write that finds none at the limit.
    fn memory_pressure(&self, control: &Control, partition: u32) -> MemoryPressure;

    /// Whether the collector has something to do in a partition.
    fn has_garbage(&self, partition: u32) -> bool;

    /// Whether memory of a partition waits for the log's reader.
    fn waits_for_log(&self, partition: u32) -> bool;

    /// Whether a transaction may soon find no memory in a partition.
    fn lacks_slabs(&self, _partition: u32) -> bool {
        false
    }

    /// Whether so little of a partition's memory is free that memory should be reclaimed in the background.
    fn is_scarce(&self, _partition: u32) -> bool {
        false
    }

    /// Number of slabs of a partition that every size can take.
    fn free_slabs(&self, _partition: u32) -> u64 {
        0
    }

    /// Whether slabs of a partition are being emptied.
    fn is_evacuating(&self, _partition: u32) -> bool {
        false
    }

    /// Reclaims unused memory of a partition; returns the number of slabs that became free. With `evacuate`, which runs
    /// the program that moves values out of a slab, sparse slabs are emptied, too.
    fn reclaim(&self, _partition: u32, _grace: &GracePeriod, _evacuate: Option<Evacuate<'_>>) -> Result<u64> {
        Ok(0)
    }

    /// Use of the memory.
    fn heap_stats(&self) -> HeapStats {
        HeapStats::default()
    }

    /// A loader for each partition; none for an engine that recovers one change after the other.
    fn loaders(&self) -> Vec<Loader<'_>> {
        Vec::new()
    }

    /// Lets a partition grow beyond its limit, into the reserve for recovery.
    fn open_reserve(&self, _partition: u32) {}

    /// Lets no partition grow beyond its limit any more. No operator runs.
    fn close_reserves(&self) {}

    /// Number of the bucket of keys with a hash; 0 for an engine without loaders.
    fn bucket_of(&self, _partition: u32, _hash: u64) -> u32 {
        0
    }

    /// The first arena, for tests that look at its memory.
    #[cfg(test)]
    fn first_arena(&self) -> Option<&super::arena::Partition> {
        None
    }

    /// Adds this engine's part of the statistics.
    fn add_statistics(&self, stats: &mut Stats);

    /// Number of scan positions.
    fn positions(&self) -> u64;

    /// A scan position that may have keys, drawn with a random number.
    fn draw_position(&self, random: u64) -> u64;

    /// Calls `f` for every key that the registered snapshot at `timestamp` sees at the positions from `from` up to the one that is
    /// returned, which is `to` or a later one.
    fn scan(
        &self,
        control: &Control,
        timestamp: u64,
        from: u64,
        to: u64,
        f: &mut dyn FnMut(SnapshotItem<'_>),
    ) -> Result<u64>;

    /// A position before the first key, for a pass that looks for expired keys. The results are hints: nothing is
    /// locked and no snapshot is registered, so an entry may change, leave, or serve another key meanwhile.
    fn expiry_cursor(&self) -> Box<dyn ExpiryCursor + '_>;

    /// The log's reader needs no value any more that commits up to this timestamp have overwritten or deleted.
    fn values_read_ts(&self, _control: &Control) -> u64 {
        u64::MAX
    }

    /// The keys of a partition, for eviction.
    fn eviction_source(&self, partition: u32) -> Box<dyn EvictionSource + '_>;

    /// The memory of a partition. The search for free memory ends when it has found `enough` bytes.
    fn room(&self, partition: u32, enough: u64) -> Room;

    /// Sets the usage that the operators keep (`KDB_USAGE_*`).
    fn set_usage_kind(&self, _kind: u32) {}

    /// Sets `kdb_arena.usage_factor`.
    fn set_usage_factor(&self, _factor: u32) {}

    /// Bytes of the log ring that a transaction writes to.
    fn log_ring_bytes(&self, control: &Control) -> u32 {
        control.config.wal_ring_bytes
    }

    /// The consumer's side of the log, of which one exists at a time.
    fn log<'db>(&'db self, control: &'db Control) -> Box<dyn LogRings + 'db>;

    /// Checks every invariant of the memory. No operator runs and no transaction is open meanwhile.
    fn verify(&self, control: &Control) -> Result<Verified>;

    /// Reads every element of the engine's maps by system calls; [`Error::State`] for an engine without such maps.
    fn dump_maps(&self, _method: DumpMethod, _f: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        Err(Error::State)
    }
}

/// The log rings of a database, which one thread at a time consumes.
pub(crate) trait LogRings: Send + Sync {
    /// Waits for a notification of the producers or for the given time; returns whether there was a notification.
    fn wait(&self, time: Duration) -> bool;

    /// Bytes ever read from the rings.
    fn read_bytes(&self) -> u64;

    /// Reads a piece of each ring and passes the transactions that are then complete to `sink`. Returns their number: 0
    /// may also mean that a large transaction has been read in part.
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize;
}
