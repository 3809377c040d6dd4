//! State that both storage engines have in common: the configuration, and the maps with the engine's global state and
//! the sessions' contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::arena::Loaded;
use super::expiry::{sessions, unix_ms};
use super::reaper::{self, CoarseClock, ContextView};
use crate::{
    Config, Result, Timeouts,
    bpf::{ArrayMapping, LoadedObject},
    hash::{self, HashKey},
    layout::{
        KDB_MARKER_SEQ_BITS, KDB_MAX_CPUS, KDB_SNAPSHOTS, MARKER, SNAPSHOT_REVOKED, SNAPSHOT_SCAN,
        kdb_cpu_stats, kdb_ctx, kdb_state,
    },
    random,
    stats::Stats,
};

/// Secrets that clients must not know.
#[derive(Clone, Copy)]
pub(crate) struct Secrets {
    /// Key of the hash of keys.
    pub hash_key: HashKey,
    /// Marks complete log records.
    pub log_secret: u64,
}

impl Secrets {
    /// Draws new secrets.
    pub(super) fn draw() -> Result<Secrets> {
        let hash_key = [random::secret_word()?, random::secret_word()?];
        Ok(Secrets { hash_key, log_secret: random::secret_word()? })
    }
}

/// The state that is shared with the eBPF programs of either engine.
pub(crate) struct Control {
    pub config: Config,
    /// The contexts of the sessions.
    pub contexts: ArrayMapping<kdb_ctx>,
    pub secrets: Secrets,
    states: ArrayMapping<kdb_state>,
    /// Limits on the duration of transactions and snapshots.
    pub timeouts: Arc<Timeouts>,
    clock: CoarseClock,
    /// Time of the last search for transactions over a limit; one thread at a time searches the contexts.
    reaped_ns: AtomicU64,
}

impl Control {
    /// Maps the state of programs that do not run yet, and initializes it.
    pub(super) fn new(config: Config, cpus: u32, secrets: Secrets, object: &LoadedObject) -> Result<Self> {
        let contexts = ArrayMapping::<kdb_ctx>::new(object.map_fd("kdb_contexts")?, sessions(&config, cpus))?;
        for session in 0..contexts.len() {
            // SAFETY: in bounds, and no program runs yet.
            unsafe { (*contexts.get(session)).session = session };
        }
        let states = ArrayMapping::<kdb_state>::new(object.map_fd("kdb_states")?, 1)?;
        // SAFETY: in bounds and aligned; the mapping is alive, and no program runs yet.
        let clock = CoarseClock::new(unsafe { AtomicU64::from_ptr(&raw mut (*states.get(0)).coarse_ns) });
        let timeouts = config.timeouts.clone();
        let reaped_ns = AtomicU64::new(0);
        let control = Control { config, contexts, secrets, states, timeouts, clock, reaped_ns };
        control.update_clock_offset();
        control.apply_timeouts();
        Ok(control)
    }

    /// Atomic view of the engine's global state.
    pub(crate) fn state(&self) -> &StateView {
        // SAFETY: StateView has the layout of the head of kdb_state (asserted beside it) and consists of
        // atomics; the mapping lives as long as `self`.
        unsafe { &*self.states.get(0).cast::<StateView>() }
    }

    /// Commit timestamp behind a version's marker, 0 = not committed. The caller must check afterwards that the version
    /// still carries the marker.
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
        hash::hash(self.secrets.hash_key, key)
    }

    /// Partition of a key with this hash, as `kdb_partition_of()` in `bpf/engine/hash.h` chooses it.
    pub(crate) fn partition_of_hash(&self, hash: u64) -> u32 {
        hash::partition_of(hash, self.config.partitions)
    }

    /// From now on the log's reader holds overwritten values again.
    pub(crate) fn end_replay(&self) {
        let durable = self.state().durable_ts.load(Ordering::SeqCst);
        self.state().drained_ts.store(durable, Ordering::SeqCst);
        for cpu in 0..KDB_MAX_CPUS as usize {
            // SAFETY: in bounds; no operator runs during recovery.
            unsafe { (&raw mut (*self.states.get(0)).stats[cpu].drained_seen).write_volatile(0) };
        }
    }

    /// Adds the keys that recovery has loaded. No operator runs.
    pub(crate) fn account_loaded(&self, loaded: Loaded) {
        let stats = self.states.get(0);
        // SAFETY: in bounds; no operator runs during recovery, so nothing else changes these counters.
        unsafe {
            (*stats).stats[0].live_keys += loaded.keys;
            (*stats).stats[0].value_bytes += loaded.bytes;
            (*stats).stats[0].expiring_keys += loaded.expiring;
        }
    }

    /// Tells the programs how old snapshots may become.
    fn apply_timeouts(&self) {
        let (snapshot, scan) = self.timeouts.grace_ns();
        self.state().snapshot_grace_ns.store(snapshot, Ordering::Relaxed);
        self.state().scan_grace_ns.store(scan, Ordering::Relaxed);
    }

    /// Advances the clock of the limits and rolls back the transactions that exceed one. `run` runs the program that
    /// rolls back in a partition. One thread at a time calls this.
    pub(super) fn enforce_timeouts(&self, run: &dyn Fn(u32, &mut [u64; 3]) -> Result<u32>) -> Result<()> {
        self.apply_timeouts();
        let now = self.clock.advance(&self.state().coarse_ns);
        if now - self.reaped_ns.load(Ordering::Relaxed) < self.timeouts.reap_interval().as_nanos() as u64 {
            return Ok(());
        }
        self.reaped_ns.store(now, Ordering::Relaxed);
        reaper::reap(&self.contexts, now, self.timeouts.transaction_ns(), run)
    }

    /// Time at which a snapshot slot was claimed.
    pub(super) fn snapshot_ns(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: in bounds (the index is checked) and aligned; accessed as whole words only, as long as `self` lives.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.states.get(0)).snapshot_ns[slot]) }
    }

    /// Whether a transaction cannot commit any more unless its commit is in the log already.
    pub(super) fn has_ended(&self, (session, number): (u64, u64)) -> bool {
        let session = u32::try_from(session).ok().filter(|session| *session < self.contexts.len());
        session.is_none_or(|session| {
            ContextView::read(self.contexts.get(session)).has_ended(number, (1 << KDB_MARKER_SEQ_BITS) - 1)
        })
    }

    /// Expiry compares Unix time; the kernel side only has the monotonic clock.
    pub(super) fn update_clock_offset(&self) {
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = monotonic.tv_sec as u64 * 1000 + monotonic.tv_nsec as u64 / 1_000_000;
        self.state().clock_offset_ms.store(unix_ms().wrapping_sub(monotonic), Ordering::Relaxed);
    }

    /// Timestamp of the oldest registered snapshot that still needs its versions; 0 while one is being registered.
    pub(crate) fn oldest_snapshot(&self) -> Option<u64> {
        let state = self.state();
        let high = (state.snapshot_high.load(Ordering::Acquire) as usize).min(state.snapshots.len());
        let needed = state.snapshots[..high].iter().filter_map(|slot| match slot.load(Ordering::Acquire) {
            0 => None,
            slot if slot & SNAPSHOT_REVOKED != 0 => None,
            slot => Some((slot & !SNAPSHOT_SCAN).saturating_sub(2)),
        });
        needed.min()
    }

    /// Number of keys that have an expiry.
    pub(crate) fn expiring_keys(&self) -> u64 {
        let state = self.states.get(0);
        (0..KDB_MAX_CPUS as usize).fold(0u64, |sum, cpu| {
            // SAFETY: in bounds; the field is read whole, and may be a little behind.
            sum.wrapping_add_signed(unsafe { (&raw const (*state).stats[cpu].expiring_keys).read_volatile() })
        })
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
    pub snapshot_grace_ns: AtomicU64,
    pub scan_grace_ns: AtomicU64,
    pub coarse_ns: AtomicU64,
    _pad3: [u64; 3],
    pub durable_ts: AtomicU64,
    pub wal_failed: AtomicU32,
    pub writes_paused: AtomicU32,
    pub clock_offset_ms: AtomicU64,
    _pad5: u64,
    pub drained_ts: AtomicU64,
    _pad4: [u64; 3],
    pub snapshots: [AtomicU64; KDB_SNAPSHOTS as usize],
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(StateView, active_snapshots) == offset_of!(kdb_state, active_snapshots));
    assert!(offset_of!(StateView, coarse_ns) == offset_of!(kdb_state, coarse_ns));
    assert!(offset_of!(StateView, durable_ts) == offset_of!(kdb_state, durable_ts));
    assert!(offset_of!(StateView, drained_ts) == offset_of!(kdb_state, drained_ts));
    assert!(offset_of!(StateView, snapshots) == offset_of!(kdb_state, snapshots));
    assert!(size_of::<StateView>() == offset_of!(kdb_state, stats));
    assert!(KDB_MARKER_SEQ_BITS < 63);
};
