//! The maps of a hash-map database: their sizes, loading them, their statistics.

use std::{
    os::fd::OwnedFd,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    candidates::IndexCandidates,
    expired::IndexCursor,
    format::{CLASSES, Format, value_cost},
    log::{HashLog, LogRing},
};
use crate::{
    Config, Result,
    bpf::{self, ArrayMapping, LoadedObject, MapFds, ObjectSpec},
    engine::{
        control::Control,
        eviction::EvictionSource,
        expiry::{ExpiryCursor, sessions},
        memory_wait::MemoryPressure,
        storage::{DumpMethod, LogRings, Room, SnapshotItem, Storage, Verified},
    },
    layout::{KDB_TX_LOCKS, kdb_config, kdb_hash_state},
    stats::Stats,
};

/// The object with the operators for user space.
const CALLS_HASHMAP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/calls_hashmap.bpf.o"));
/// Maps of this engine, besides those that all engines have.
const MAPS: &[&str] = &[
    "kdb_index",
    "kdb_hash_work",
    "kdb_hash_held",
    "kdb_hash_queue",
    "kdb_hash_state",
    "kdb_hash_log",
    "kdb_values_0",
    "kdb_values_1",
    "kdb_values_2",
    "kdb_values_3",
    "kdb_values_4",
    "kdb_values_5",
    "kdb_values_6",
    "kdb_values_7",
];
const VALUE_MAPS: &[&str] = MAPS.split_at(MAPS.len() - CLASSES.len()).1;
/// Memory of the collector's queue.
const QUEUE_BYTES: u32 = 4 << 20;
/// Number of times that an operation waits for the kernel's allocator, and duration of each wait.
const REFILL_TRIES: u32 = 200;
const REFILL_TIME: Duration = Duration::from_micros(100);
/// Memory of a bucket of a hash map.
const BUCKET: u64 = 16;

/// Maps of one database. All methods may be called from several threads at once.
pub(crate) struct HashStore {
    pub(super) index: OwnedFd,
    pub(super) values: Vec<OwnedFd>,
    pub(super) format: Format,
    state: ArrayMapping<kdb_hash_state>,
    config: kdb_config,
    bucket_bytes: u64,
    /// Buckets of the index, a power of two.
    pub(super) buckets: u32,
    ring_bytes: u32,
    log: Mutex<Option<LogRing>>,
}

impl HashStore {
    /// Creates the maps and loads the programs. `shared` are the sizes of the maps that all engines have.
    pub(crate) fn load(
        config: &Config,
        ncpus: u32,
        shared: &[(&str, u32)],
    ) -> Result<(HashStore, LoadedObject)> {
        let constants = constants(config)?;
        let format = Format::of(&constants);
        // The numbers of buckets are powers of two, and suffice for any sizes of the values within the
        // limit.
        let most = |bytes: u64| (config.memory_bytes / bytes).clamp(64, 1 << 30).next_power_of_two() as u32;
        let index_entries = most(format.entry_cost() + value_cost(0));
        let value_entries: Vec<u32> =
            (0..CLASSES.len()).map(|class| most(format.entry_cost() + value_cost(class))).collect();
        let buckets = value_entries.iter().chain([&index_entries]).map(|n| u64::from(*n)).sum::<u64>();
        // All processors share one ring. Without a log there is a small one that is not used.
        let ring = config.wal_ring_bytes.saturating_mul(ncpus.next_power_of_two()).clamp(4096, 1 << 30);
        let mut entries = shared.to_vec();
        entries.extend([
            ("kdb_index", index_entries),
            ("kdb_hash_work", sessions(config, ncpus) + 1),
            ("kdb_hash_held", sessions(config, ncpus) * KDB_TX_LOCKS),
            ("kdb_hash_queue", QUEUE_BYTES / format.map_key()),
            ("kdb_hash_log", ring),
        ]);
        entries.extend(VALUE_MAPS.iter().copied().zip(value_entries));
        let object = bpf::load(&ObjectSpec {
            name: "kdb_call",
            elf: CALLS_HASHMAP,
            config: constants,
            constants: &[],
            reuse: &MapFds::new(),
            entries: &entries,
            sizes: &[
                ("kdb_index", format.map_key(), format.entry()),
                ("kdb_hash_held", 4, format.map_key()),
                ("kdb_hash_queue", 0, format.map_key()),
            ],
            arena_address: None,
            leave_out: None,
        })?;
        let log = match config.wal_ring_bytes {
            0 => None,
            _ => Some(LogRing::new(object.map_fd("kdb_hash_log")?)?),
        };
        let store = HashStore {
            index: object.share_map("kdb_index")?,
            values: VALUE_MAPS.iter().map(|name| object.share_map(name)).collect::<Result<_>>()?,
            format,
            state: ArrayMapping::new(object.map_fd("kdb_hash_state")?, 1)?,
            config: constants,
            bucket_bytes: buckets * BUCKET,
            buckets: index_entries,
            ring_bytes: ring,
            log: Mutex::new(log),
        };
        // SAFETY: in bounds, and no program runs yet.
        unsafe { (*store.state.get(0)).limit = config.memory_bytes };
        Ok((store, object))
    }

    /// Memory in entries and values.
    pub(super) fn used(&self) -> u64 {
        // SAFETY: in bounds, and only accessed atomically.
        self.counter(unsafe { &raw mut (*self.state.get(0)).used })
    }

    /// Memory that entries and values may take.
    fn limit(&self) -> u64 {
        // SAFETY: in bounds; written once, before the database was used.
        unsafe { (*self.state.get(0)).limit }
    }

    /// Number of index entries.
    pub(super) fn entries(&self) -> u64 {
        // SAFETY: in bounds, and only accessed atomically.
        self.counter(unsafe { &raw mut (*self.state.get(0)).entries })
    }

    fn counter(&self, field: *mut u64) -> u64 {
        // SAFETY: a field of the mapped state: aligned, alive as long as `self`, changed by atomics only.
        unsafe { AtomicU64::from_ptr(field) }.load(Ordering::Relaxed)
    }
}

impl Storage for HashStore {
    fn partitions(&self) -> u32 {
        1
    }

    fn constants(&self, _partition: u32) -> kdb_config {
        self.config
    }

    fn maps(&self) -> &'static [&'static str] {
        MAPS
    }

    fn foreign_map(&self) -> &'static str {
        "kdb_arena"
    }

    /// The kernel allocates memory when it is written.
    fn wants_memory(&self, _partition: u32) -> bool {
        false
    }

    fn grow(&self, _partition: u32) -> bool {
        false
    }

    /// The kernel side may not sleep, so the kernel's allocator serves it from small caches and refills
    /// them in the background. This waits a moment for that; false at the limit, or after too many
    /// attempts.
    fn grow_beyond(&self, _partition: u32, _seen: u64, attempt: u32) -> bool {
        if attempt >= REFILL_TRIES || self.used() + value_cost(CLASSES.len() - 1) > self.limit() {
            return false;
        }
        std::thread::sleep(REFILL_TIME);
        true
    }

    fn committed(&self, _partition: u32) -> u64 {
        0
    }

    fn prefault(&self, _bytes: u64) {}

    fn memory_pressure(&self, control: &Control, _partition: u32) -> MemoryPressure {
        MemoryPressure::of(control.state(), |_drained| (false, false))
    }

    fn has_garbage(&self, _partition: u32) -> bool {
        // SAFETY: in bounds, and only accessed atomically.
        self.counter(unsafe { &raw mut (*self.state.get(0)).garbage }) != 0
    }

    /// Its log has copies of all values.
    fn waits_for_log(&self, _partition: u32) -> bool {
        false
    }

    fn add_statistics(&self, stats: &mut Stats) {
        stats.memory_used += self.used();
        stats.memory_committed += self.used() + self.bucket_bytes;
        stats.memory_limit += self.limit();
        stats.entries += self.entries();
    }

    /// A position is a bucket of the index. The kernel never changes their number.
    fn positions(&self) -> u64 {
        u64::from(self.buckets)
    }

    fn draw_position(&self, random: u64) -> u64 {
        random % self.positions()
    }

    fn scan(
        &self,
        control: &Control,
        timestamp: u64,
        from: u64,
        to: u64,
        f: &mut dyn FnMut(SnapshotItem<'_>),
    ) -> Result<u64> {
        let bucket = |position: u64| position.min(self.positions()) as u32;
        if bucket(from) >= bucket(to) {
            return Ok(to);
        }
        let next = self.scan_buckets(control, timestamp, (bucket(from), bucket(to)), f)?;
        Ok(to.max(next.into()))
    }

    fn expiry_cursor(&self) -> Box<dyn ExpiryCursor + '_> {
        Box::new(IndexCursor::new(self))
    }

    fn eviction_source(&self, _partition: u32) -> Box<dyn EvictionSource + '_> {
        Box::new(IndexCandidates(self))
    }

    fn room(&self, _partition: u32, _enough: u64) -> Room {
        Room { total: self.limit(), free: self.limit().saturating_sub(self.used()) }
    }

    fn log_ring_bytes(&self, _control: &Control) -> u32 {
        self.ring_bytes
    }

    fn log<'db>(&'db self, control: &'db Control) -> Box<dyn LogRings + 'db> {
        let ring = self.log.lock().unwrap_or_else(|e| e.into_inner()).take();
        let ring = ring.expect("the log exists and is taken once");
        Box::new(HashLog::new(control, ring, control.state().durable_ts.load(Ordering::SeqCst) + 1))
    }

    fn verify(&self, control: &Control) -> Result<Verified> {
        self.verify_maps(control)
    }

    fn dump_maps(&self, method: DumpMethod, f: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        self.dump(method, f)
    }
}

fn constants(config: &Config) -> Result<kdb_config> {
    let [irqs, any_memory] = bpf::kernel_has(["bpf_local_irq_save", "bpf_rcu_read_lock"])?;
    Ok(kdb_config {
        partition: 0,
        partitions: 1,
        versions: config.versions,
        slots: config.versions.max(2),
        buckets: 0,
        bucket_mask: 0,
        cpus: 0,
        ncpus: 0,
        rings: 0,
        heap: 0,
        slabs: 0,
        bitmaps: 0,
        bitmap_words: 0,
        wal: u32::from(config.wal_ring_bytes > 0),
        hash_key: [0; 2],
        log_secret: 0,
        key_bytes: config.key_bytes.next_multiple_of(8),
        irqs: u32::from(irqs),
        wal_notify: config.wal_notify_bytes,
        // Linux 6.2 and newer accept any memory, and have this function as well.
        map_args: u32::from(!any_memory),
        handler_sessions: 0,
        _pad: 0,
    })
}
