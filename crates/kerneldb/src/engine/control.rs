//! What both storage engines have in common: the configuration, and the maps with the engine's global state and the
//! sessions' contexts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{
    Config, Result,
    bpf::{ArrayMapping, LoadedObject},
    layout::{KDB_MARKER_SEQ_BITS, KDB_MAX_CPUS, KDB_SNAPSHOTS, MARKER, kdb_cpu_stats, kdb_ctx, kdb_state},
    stats::Stats,
};

/// The state that is shared with the eBPF programs of either engine.
pub(crate) struct Control {
    pub config: Config,
    /// The contexts of the sessions.
    pub contexts: ArrayMapping<kdb_ctx>,
    /// The secret of the index hash.
    pub seed: u64,
    states: ArrayMapping<kdb_state>,
}

impl Control {
    /// Maps the state of programs that do not run yet, and initializes it.
    pub(super) fn new(config: Config, seed: u64, object: &LoadedObject) -> Result<Self> {
        let contexts = ArrayMapping::<kdb_ctx>::new(object.map_fd("kdb_contexts")?, config.max_sessions)?;
        for session in 0..contexts.len() {
            // SAFETY: in bounds, and no program runs yet.
            unsafe { (*contexts.get(session)).session = session };
        }
        let states = ArrayMapping::new(object.map_fd("kdb_states")?, 1)?;
        let control = Control { config, contexts, seed, states };
        control.state().hash_seed.store(seed, Ordering::Relaxed);
        control.update_clock_offset();
        Ok(control)
    }

    /// Atomic view of the engine's global state.
    pub(crate) fn state(&self) -> &StateView {
        // SAFETY: StateView has the layout of the head of kdb_state (asserted beside it) and consists of
        // atomics; the mapping lives as long as `self`.
        unsafe { &*self.states.get(0).cast::<StateView>() }
    }

    /// Commit timestamp behind a version's marker, 0 = not committed. The caller has to check that the
    /// version still carries the marker afterwards.
    pub(crate) fn resolve(&self, marker: u64) -> u64 {
        let session = ((marker & !MARKER) >> KDB_MARKER_SEQ_BITS) as u32;
        let mask = (1u64 << KDB_MARKER_SEQ_BITS) - 1;
        if session >= self.contexts.len() {
            return 0;
        }
        let ctx = self.contexts.get(session);
        // SAFETY: in bounds; both fields are aligned 64-bit words that the kernel side stores whole.
        let (seq, ts) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*ctx).tx_seq).load(Ordering::Acquire),
                AtomicU64::from_ptr(&raw mut (*ctx).commit_ts).load(Ordering::Acquire),
            )
        };
        if seq & mask == marker & mask { ts } else { 0 }
    }

    /// The partition of a key.
    pub(crate) fn partition_of(&self, key: &[u8]) -> u32 {
        if self.config.partitions == 1 { 0 } else { self.partition_of_hash(self.hash_of(key)) }
    }

    /// Hash of a key, as `kdb_hash()` in `bpf/engine/hash.h` computes it.
    pub(crate) fn hash_of(&self, key: &[u8]) -> u64 {
        xxhash_rust::xxh64::xxh64(key, self.seed)
    }

    /// Partition of a key with this hash, as `kdb_partition_of()` in `bpf/engine/hash.h` chooses it.
    pub(crate) fn partition_of_hash(&self, hash: u64) -> u32 {
        (((hash >> 48) * u64::from(self.config.partitions)) >> 16) as u32
    }

    /// The log's reader holds what is overwritten from now on again.
    pub(crate) fn end_replay(&self) {
        let durable = self.state().durable_ts.load(Ordering::SeqCst);
        self.state().drained_ts.store(durable, Ordering::SeqCst);
        for cpu in 0..KDB_MAX_CPUS as usize {
            // SAFETY: in bounds; no operator runs during recovery.
            unsafe { (&raw mut (*self.states.get(0)).stats[cpu].drained_seen).write_volatile(0) };
        }
    }

    /// Expiry compares Unix time; the kernel side only has the monotonic clock.
    pub(super) fn update_clock_offset(&self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = monotonic.tv_sec as u64 * 1000 + monotonic.tv_nsec as u64 / 1_000_000;
        self.state().clock_offset_ms.store(unix.wrapping_sub(monotonic), Ordering::Relaxed);
    }

    /// Adds up the counters of all processors.
    pub(super) fn add_statistics(&self, stats: &mut Stats) {
        let state = self.states.get(0);
        for cpu in 0..KDB_MAX_CPUS as usize {
            // SAFETY: in bounds; counters are read whole, and may be a little behind each other.
            let per_cpu: kdb_cpu_stats = unsafe { (&raw const (*state).stats[cpu]).read_volatile() };
            stats.add(&per_cpu);
        }
        stats.clock = self.state().clock.load(Ordering::Relaxed);
        stats.durable_ts = self.state().durable_ts.load(Ordering::Relaxed);
        stats.active_snapshots = self.state().active_snapshots.load(Ordering::Relaxed);
        stats.log_failed = self.state().wal_failed.load(Ordering::Relaxed) != 0;
    }
}

/// Atomic view of the engine's global state; same layout as `kdb_state`'s head.
#[repr(C)]
pub(crate) struct StateView {
    pub clock: AtomicU64,
    pub commit_latch: AtomicU32,
    _pad0: u32,
    _pad1: [u64; 6],
    pub active_snapshots: AtomicU64,
    pub snapshot_high: AtomicU32,
    _pad2: u32,
    _pad3: [u64; 6],
    pub durable_ts: AtomicU64,
    pub wal_failed: AtomicU32,
    pub writes_paused: AtomicU32,
    pub clock_offset_ms: AtomicU64,
    pub hash_seed: AtomicU64,
    pub drained_ts: AtomicU64,
    _pad4: [u64; 3],
    pub snapshots: [AtomicU64; KDB_SNAPSHOTS as usize],
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(StateView, active_snapshots) == offset_of!(kdb_state, active_snapshots));
    assert!(offset_of!(StateView, durable_ts) == offset_of!(kdb_state, durable_ts));
    assert!(offset_of!(StateView, drained_ts) == offset_of!(kdb_state, drained_ts));
    assert!(offset_of!(StateView, snapshots) == offset_of!(kdb_state, snapshots));
    assert!(size_of::<StateView>() == offset_of!(kdb_state, stats));
    assert!(KDB_MARKER_SEQ_BITS < 63);
};
