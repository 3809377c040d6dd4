//! Counters of the engine.

use crate::layout::kdb_cpu_stats;

/// Counts of the engine since it was created. Counts other than `keys` and `bytes` may miss a few
/// events that interrupted each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it; those that do not are commented")]
pub struct Stats {
    pub gets: u64,
    pub get_misses: u64,
    pub sets: u64,
    pub deletes: u64,
    pub begins: u64,
    pub begins_read_only: u64,
    pub commits: u64,
    pub commits_read_only: u64,
    pub rollbacks: u64,
    /// Operators that met another transaction's lock.
    pub conflicts: u64,
    pub no_memory: u64,
    /// Writes that found all versions in use by snapshots.
    pub no_version: u64,
    /// Writes refused because a log ring was full.
    pub wal_full: u64,
    /// Transactions that exceeded their age or idle limit and were rolled back.
    pub transactions_timed_out: u64,
    /// Transactions that exceeded [`crate::limits::TX_BYTES_MAX`].
    pub transactions_too_large: u64,
    /// Snapshots that gave way to writers.
    pub snapshots_revoked: u64,
    pub versions_pruned: u64,
    /// Index entries that the background collector removed.
    pub entries_collected: u64,
    /// Blocks of old versions that had to wait until the log's reader was done with them.
    pub blocks_waited: u64,
    /// Lock-free reads that had to be repeated.
    pub read_retries: u64,
    /// Number of keys.
    pub keys: u64,
    /// Bytes in keys and values of the keys.
    pub bytes: u64,
    /// Number of keys that have an expiry.
    pub expiring_keys: u64,
    /// Keys that were deleted or overwritten after their expiry had passed.
    pub expired: u64,
    /// Bytes of the arenas handed out to slabs, indexes and rings.
    pub memory_used: u64,
    /// Bytes of the arenas backed by memory.
    pub memory_committed: u64,
    /// Bytes that the arenas may take.
    pub memory_limit: u64,
    /// Index entries, including deleted keys that were not collected yet.
    pub entries: u64,
    /// Newest commit timestamp.
    pub clock: u64,
    /// Newest commit timestamp on disk.
    pub durable_ts: u64,
    pub active_snapshots: u64,
    /// The log cannot be written.
    pub log_failed: bool,
}

impl Stats {
    pub(crate) fn add(&mut self, cpu: &kdb_cpu_stats) {
        self.gets += cpu.gets;
        self.get_misses += cpu.get_misses;
        self.sets += cpu.sets;
        self.deletes += cpu.dels;
        self.begins += cpu.begins;
        self.begins_read_only += cpu.begins_ro;
        self.commits += cpu.commits;
        self.commits_read_only += cpu.commits_ro;
        self.rollbacks += cpu.rollbacks;
        self.conflicts += cpu.conflicts;
        self.no_memory += cpu.no_memory;
        self.no_version += cpu.no_version;
        self.wal_full += cpu.wal_full;
        self.transactions_timed_out += cpu.tx_timed_out;
        self.transactions_too_large += cpu.tx_too_large;
        self.snapshots_revoked += cpu.snapshots_revoked;
        self.versions_pruned += cpu.versions_pruned;
        self.entries_collected += cpu.gc_entries;
        self.blocks_waited += cpu.deferred_freed;
        self.read_retries += cpu.read_retries;
        // The share of one CPU may be negative; the sum over all is not.
        self.keys = self.keys.wrapping_add_signed(cpu.live_keys);
        self.bytes = self.bytes.wrapping_add_signed(cpu.value_bytes);
        self.expiring_keys = self.expiring_keys.wrapping_add_signed(cpu.expiring_keys);
        self.expired += cpu.expired;
    }
}
