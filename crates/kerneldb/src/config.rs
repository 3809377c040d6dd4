//! Configuration of a new database.

use std::sync::Arc;

use crate::{
    Error, EvictionPolicy, Result, Timeouts,
    bpf::kernel_has,
    layout::KDB_USAGE_NONE,
    limits::{
        HASH_MAP_KEY_BYTES, HASH_MAP_VERSIONS_MAX, LOG_RING_BYTES_MAX, LOG_RING_BYTES_MIN,
        PARTITION_BYTES_MAX, PARTITION_BYTES_MIN, PARTITIONS_MAX, SESSIONS_MAX, VERSIONS_MAX,
    },
};

/// The storage engine that holds the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Arenas (kernel 6.14 and newer).
    #[default]
    Arena,
    /// The paper's hash maps per size class (kernel 6.1 and newer): one partition, at most eight versions.
    HashMap,
}

impl EngineKind {
    /// The engine for the running kernel: arenas if it has what they need, otherwise hash maps.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel has no type information (`CONFIG_DEBUG_INFO_BTF`), which both engines need.
    pub fn of_this_kernel() -> Result<EngineKind> {
        // Linux 6.9 added the first one, Linux 6.14 the second one.
        match kernel_has(["bpf_arena_alloc_pages", "bpf_local_irq_save"])? {
            [true, true] => Ok(EngineKind::Arena),
            _ => Ok(EngineKind::HashMap),
        }
    }

    /// Whether a database on this engine knows enough about the use of keys for a policy of eviction.
    pub fn evicts(self, policy: EvictionPolicy) -> bool {
        self == EngineKind::Arena || policy.usage_kind() == KDB_USAGE_NONE
    }

    /// The fewest partitions of a database with this limit on its memory.
    pub fn partitions_for(self, memory_bytes: u64) -> u32 {
        match self {
            EngineKind::Arena => {
                u32::try_from(memory_bytes.div_ceil(PARTITION_BYTES_MAX)).unwrap_or(u32::MAX).max(1)
            }
            EngineKind::HashMap => 1,
        }
    }
}

/// Configuration of a new database.
#[derive(Clone, Debug)]
pub struct Config {
    /// Storage engine.
    pub engine: EngineKind,
    /// Partitions, 1..=16; one arena of at most 4 GiB each.
    pub partitions: u32,
    /// Memory limit in bytes over all partitions; at least 16 MiB a partition.
    pub memory_bytes: u64,
    /// Sessions at once, 1..=65536. Each takes about 2 KiB of kernel memory.
    pub max_sessions: u32,
    /// Versions per key, 1..=64; 1 = single-version mode (paper 6.9): read-only transactions lock.
    pub versions: u32,
    /// Size of each log ring in bytes (power of two, per CPU and partition); 0 = no log. The hash-map
    /// engine has one ring instead: this size times the number of CPUs, rounded up to a power of two, at
    /// most 1 GiB.
    pub wal_ring_bytes: u32,
    /// Hash-map engine only: longest key in bytes, 16..=256 (rounded up to a multiple of 8). Every key is
    /// stored and hashed at this length, and each session takes 128 times as many bytes.
    pub key_bytes: u32,
    /// Hash-map engine only: number of bytes after which a reader that waits for the log is woken (paper
    /// 4.3); 0 = never.
    pub wal_notify_bytes: u32,
    /// Limits on the duration of transactions and snapshots. The database and its server share them with
    /// the caller.
    pub timeouts: Arc<Timeouts>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            engine: EngineKind::Arena,
            partitions: 1,
            memory_bytes: 1 << 30,
            max_sessions: 4096,
            versions: 4,
            wal_ring_bytes: 0,
            key_bytes: 256,
            wal_notify_bytes: 64 << 10,
            timeouts: Arc::default(),
        }
    }
}

impl Config {
    /// Returns an error if a value is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let fail = |text: String| Err(Error::Config(text));
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            return fail(format!("partitions must be 1 to {PARTITIONS_MAX}"));
        }
        if !(1..=VERSIONS_MAX).contains(&self.versions) {
            return fail(format!("versions must be 1 to {VERSIONS_MAX}"));
        }
        if !(1..=SESSIONS_MAX).contains(&self.max_sessions) {
            return fail(format!("sessions must be 1 to {SESSIONS_MAX}"));
        }
        let ring = self.wal_ring_bytes;
        let possible = ring.is_power_of_two() && (LOG_RING_BYTES_MIN..=LOG_RING_BYTES_MAX).contains(&ring);
        if ring != 0 && !possible {
            return fail(format!(
                "log rings of {ring} bytes: the size must be a power of two, 256 KiB to 1 GiB"
            ));
        }
        if self.engine == EngineKind::HashMap {
            if self.partitions != 1 || self.versions > HASH_MAP_VERSIONS_MAX {
                return fail(format!(
                    "the hash-map engine has one partition and at most {HASH_MAP_VERSIONS_MAX} versions"
                ));
            }
            if !HASH_MAP_KEY_BYTES.contains(&self.key_bytes) {
                return fail("the longest key of the hash-map engine must be 16 to 256 bytes".into());
            }
        } else if self.memory_bytes > u64::from(self.partitions) * PARTITION_BYTES_MAX {
            return fail(format!(
                "{} bytes need {} partitions of at most 4 GiB",
                self.memory_bytes,
                self.engine.partitions_for(self.memory_bytes)
            ));
        } else if self.memory_bytes < u64::from(self.partitions) * PARTITION_BYTES_MIN {
            return fail(format!(
                "{} bytes are too few for {} partitions of at least 16 MiB",
                self.memory_bytes, self.partitions
            ));
        }
        Ok(())
    }
}
