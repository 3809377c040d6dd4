//! The database: the loaded programs, their maps and the mapped arenas.
//!
//! `Inner` owns everything and is shared by sessions; `Database` is the public handle and runs the
//! background thread. Locks, in order: `housekeeping`, `free_sessions`, a partition's growth lock; only
//! the first is held while a program runs.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    Application, Error, LogTxn, Replayer, Result, Session,
    arena::{Geometry, HeapStats, LogReader, Partition, Snapshot, StateView, Verified, verify},
    attach::{self, Attachment},
    bpf::{
        self, ArenaMapping, ArrayMapping, GracePeriod, LoadedObject, MapFds, ObjectSpec, Program, Reservation,
    },
    config::{Config, EngineKind},
    hashmap::HashStore,
    housekeeping::Housekeeping,
    layout::{
        KDB_MARKER_SEQ_BITS, KDB_MAX_CPUS, MARKER, kdb_cpu_stats, kdb_ctx, kdb_io, kdb_replay, kdb_state,
        kdb_trace,
    },
    limits::MIN_ARENA,
    replay_lanes,
    stats::Stats,
    trace::Trace,
};

/// The object with the operators for user space.
const LOCAL_ARENA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/local_arena.bpf.o"));
/// Maps that every object of a database shares; the arena is per partition.
const SHARED_MAPS: [&str; 4] = ["kdb_contexts", "kdb_ios", "kdb_states", "kdb_traces"];
/// The background thread looks for work this often.
const TICK: Duration = Duration::from_millis(5);

/// The programs of one partition.
pub(crate) struct Programs {
    pub local: Program,
    pub batch: Program,
    pub noop: Program,
    /// Arena engine.
    replay: Option<Program>,
    pub collect: Program,
    /// Arena engine: moves values out of slabs that are being emptied.
    pub evacuate: Option<Program>,
    object: LoadedObject,
}

/// Everything that a database is made of.
pub(crate) struct Inner {
    pub config: Config,
    /// Arena engine: the arenas.
    pub partitions: Vec<Partition>,
    /// Hash-map engine: the maps.
    pub hash: Option<HashStore>,
    pub programs: Vec<Programs>,
    pub contexts: ArrayMapping<kdb_ctx>,
    pub ios: ArrayMapping<kdb_io>,
    pub traces: ArrayMapping<kdb_trace>,
    /// Batches of logged changes; none with the hash-map engine.
    pub replays: Option<ArrayMapping<kdb_replay>>,
    states: ArrayMapping<kdb_state>,
    free_sessions: Mutex<Vec<u32>>,
    pub housekeeping: Mutex<Housekeeping>,
    pub grace: GracePeriod,
    log_reader_taken: AtomicBool,
    pub seed: u64,
}

impl Inner {
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

    /// The programs of a partition.
    pub(crate) fn programs(&self, partition: u32) -> &Programs {
        &self.programs[partition as usize]
    }

    /// Partition of a key.
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

    /// A batch of logged changes (arena engine); panics if there is none with this index.
    pub(crate) fn replay_batch(&self, index: u32) -> *mut kdb_replay {
        self.replays.as_ref().expect("the arena engine has batches").get(index)
    }

    /// The program that applies batches of logged changes (arena engine).
    pub(crate) fn replay_program(&self, partition: u32) -> Result<&Program> {
        self.programs(partition).replay.as_ref().ok_or(Error::State)
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free_sessions.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes a free session index.
    pub(crate) fn claim_session(&self) -> Result<u32> {
        self.sessions().pop().ok_or(Error::NoSession(self.config.max_sessions))
    }

    /// Gives a session index back; its transaction is over.
    pub(crate) fn release_session(&self, index: u32) {
        self.sessions().push(index);
    }

    /// Claims an I/O buffer.
    pub(crate) fn claim_io(&self) -> u32 {
        let start = thread_hint();
        loop {
            for i in 0..self.ios.len() {
                let index = start.wrapping_add(i) % self.ios.len();
                // SAFETY: in bounds; `claimed` is only ever accessed atomically.
                let claimed = unsafe { AtomicU32::from_ptr(&raw mut (*self.ios.get(index)).claimed) };
                if claimed.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return index;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Gives an I/O buffer back.
    pub(crate) fn release_io(&self, index: u32) {
        // SAFETY: as in `claim_io`.
        let claimed = unsafe { AtomicU32::from_ptr(&raw mut (*self.ios.get(index)).claimed) };
        claimed.store(0, Ordering::Release);
    }

    /// What is overwritten from now on waits for the log's reader again.
    pub(crate) fn end_replay(&self) {
        let durable = self.state().durable_ts.load(Ordering::SeqCst);
        self.state().drained_ts.store(durable, Ordering::SeqCst);
        for cpu in 0..KDB_MAX_CPUS as usize {
            // SAFETY: in bounds; no operator runs during recovery.
            unsafe { (&raw mut (*self.states.get(0)).stats[cpu].drained_seen).write_volatile(0) };
        }
    }

    /// Expiry compares Unix time; the kernel side only has the monotonic clock.
    pub(crate) fn update_clock_offset(&self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = monotonic.tv_sec as u64 * 1000 + monotonic.tv_nsec as u64 / 1_000_000;
        self.state().clock_offset_ms.store(unix.wrapping_sub(monotonic), Ordering::Relaxed);
    }

    /// What the operators counted.
    pub(crate) fn counters(&self) -> Stats {
        let mut stats = Stats::default();
        let state = self.states.get(0);
        for cpu in 0..KDB_MAX_CPUS as usize {
            // SAFETY: in bounds; counters are read whole, and may be a little behind each other.
            let per_cpu: kdb_cpu_stats = unsafe { (&raw const (*state).stats[cpu]).read_volatile() };
            stats.add(&per_cpu);
        }
        stats
    }

    fn stats(&self) -> Stats {
        let mut stats = self.counters();
        for partition in &self.partitions {
            stats.memory_used += partition.brk();
            stats.memory_committed += partition.committed();
            stats.memory_limit += partition.geometry.limit;
            stats.entries += partition.entries();
        }

        if let Some(hash) = &self.hash {
            hash.add_stats(&mut stats);
        }
        stats.clock = self.state().clock.load(Ordering::Relaxed);
        stats.durable_ts = self.state().durable_ts.load(Ordering::Relaxed);
        stats.active_snapshots = self.state().active_snapshots.load(Ordering::Relaxed);
        stats.log_failed = self.state().wal_failed.load(Ordering::Relaxed) != 0;
        stats
    }
}

/// Spreads threads over I/O buffers.
fn thread_hint() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static HINT: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    HINT.with(|h| *h)
}

/// A database in the kernel. `Send + Sync`; wrap it in an `Arc`. It is gone when the last handle and the
/// last session are dropped, unless it was logged or checkpointed.
pub struct Database {
    inner: Arc<Inner>,
    stop: Arc<AtomicBool>,
    housekeeper: Option<JoinHandle<()>>,
}

impl Database {
    /// Loads the programs and creates an empty database.
    pub fn create(config: Config) -> Result<Database> {
        config.check()?;
        let ncpus = possible_cpus()?;
        let mut seed = [0u8; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::io("cannot get random bytes", e.into()))?;
        let seed = u64::from_ne_bytes(seed);
        let ios = ncpus * 8 + 16;
        let traces = ncpus + 2;
        let replays = replay_lanes::batch_count(config.partitions);
        let limit = (config.memory_bytes / u64::from(config.partitions)).clamp(MIN_ARENA, 1 << 32) & !0xffff;

        let mut shared = MapFds::new();
        let mut partitions = Vec::new();
        let mut programs = Vec::new();
        let mut hash = None;
        if config.engine == EngineKind::HashMap {
            let shared = [("kdb_contexts", config.max_sessions), ("kdb_ios", ios), ("kdb_traces", traces)];
            let (store, object) = HashStore::load(&config, ncpus, &shared)?;
            hash = Some(store);
            programs.push(Programs::of(object)?);
        }
        let arenas = if hash.is_some() { 0 } else { config.partitions };
        for index in 0..arenas {
            let geometry =
                Geometry::new(limit, index, config.partitions, config.versions, ncpus, config.wal_ring_bytes);
            if geometry.heap + MIN_ARENA / 2 > limit {
                return Err(Error::Config(format!(
                    "a partition of {limit} bytes is too small for its log rings of {} bytes a CPU",
                    config.wal_ring_bytes
                )));
            }
            let window = Reservation::new()?;
            let object = bpf::load(&ObjectSpec {
                name: "kdb_local",
                elf: LOCAL_ARENA,
                config: geometry.config(seed),
                constants: &[],
                reuse: &shared,
                entries: &[
                    ("kdb_arena", (limit / 4096) as u32),
                    ("kdb_contexts", config.max_sessions),
                    ("kdb_ios", ios),
                    ("kdb_traces", traces),
                    ("kdb_replays", replays),
                ],
                sizes: &[],
                arena_address: Some(window.address()),
            })?;
            if index == 0 {
                for name in SHARED_MAPS.into_iter().chain(["kdb_replays"]) {
                    shared.insert(name.into(), object.share_map(name)?);
                }
            }
            partitions.push(Partition::create(ArenaMapping::new(window, limit), geometry));
            programs.push(Programs::of(object)?);
        }

        let inner = Inner {
            contexts: ArrayMapping::new(programs[0].object.map_fd("kdb_contexts")?, config.max_sessions)?,
            ios: ArrayMapping::new(programs[0].object.map_fd("kdb_ios")?, ios)?,
            states: ArrayMapping::new(programs[0].object.map_fd("kdb_states")?, 1)?,
            traces: ArrayMapping::new(programs[0].object.map_fd("kdb_traces")?, traces)?,
            replays: match config.engine {
                EngineKind::Arena => {
                    Some(ArrayMapping::new(programs[0].object.map_fd("kdb_replays")?, replays)?)
                }
                EngineKind::HashMap => None,
            },
            free_sessions: Mutex::new((0..config.max_sessions).rev().collect()),
            housekeeping: Mutex::default(),
            grace: GracePeriod::new()?,
            log_reader_taken: AtomicBool::new(false),
            config,
            partitions,
            hash,
            programs,
            seed,
        };
        for session in 0..inner.config.max_sessions {
            // SAFETY: in bounds, and no program runs yet.
            unsafe { (*inner.contexts.get(session)).session = session };
        }
        inner.state().hash_seed.store(seed, Ordering::Relaxed);
        inner.update_clock_offset();

        let inner = Arc::new(inner);
        let stop = Arc::new(AtomicBool::new(false));
        let housekeeper = {
            let (inner, stop) = (inner.clone(), stop.clone());
            std::thread::Builder::new()
                .name("kdb-housekeep".into())
                .spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match inner.housekeep() {
                            Ok(true) => {}
                            Ok(false) => std::thread::park_timeout(TICK),
                            Err(e) => {
                                tracing::error!("background work failed: {e}");
                                std::thread::park_timeout(Duration::from_secs(1));
                            }
                        }
                    }
                })
                .map_err(|e| Error::io("cannot start the background thread", e))?
        };
        Ok(Database { inner, stop, housekeeper: Some(housekeeper) })
    }

    /// Opens a session.
    pub fn session(&self) -> Result<Session> {
        Session::open(self.inner.clone())
    }

    /// Loads an eBPF object of an application, bound to the data of one partition. It includes
    /// `bedplate/kdb.h` (folder `bpf/include` of this crate).
    pub fn load_application(&self, elf: &[u8], partition: u32) -> Result<Application> {
        Application::load(self.inner.clone(), elf, partition)
    }

    /// Loads a further eBPF object onto the data of one partition ([`crate::attach`]). The data stays as long as the
    /// database or the object does.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is no such partition or the object was compiled for the other storage engine,
    /// [`Error::Kernel`] if the kernel refuses the object.
    pub fn attach(&self, attachment: Attachment<'_>) -> Result<LoadedObject> {
        attach::load(&self.inner, attachment)
    }

    /// Claims a trace, for running many operations in one call. [`Error::Busy`] if all are in use.
    pub fn trace(&self) -> Result<Trace> {
        Trace::claim(self.inner.clone())
    }

    /// Takes a snapshot for scanning.
    pub fn snapshot(&self) -> Result<Snapshot<'_>> {
        Snapshot::register(&self.inner)
    }

    /// Number of keys (expired ones that were not collected yet included).
    pub fn len(&self) -> u64 {
        self.inner.stats().keys
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Commit timestamp of the newest completely visible commit.
    pub fn clock(&self) -> u64 {
        self.inner.state().clock.load(Ordering::Acquire)
    }

    /// What the engine counted so far.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// What the memory is used for; takes time in proportion to it (about a tenth of a millisecond a gibibyte).
    /// The hash-map engine has none of this.
    pub fn heap_stats(&self) -> HeapStats {
        let mut stats = HeapStats::default();
        self.inner.partitions.iter().for_each(|partition| partition.add_heap_stats(&mut stats));
        stats
    }

    /// Checks every invariant of the mapped memory: index, versions, and that each byte of the heap is
    /// accounted for. No operator may run and no transaction may be open meanwhile; [`Error::Corrupt`]
    /// says what is wrong.
    pub fn verify(&self) -> Result<Verified> {
        // The collector is the only other one at work: let it finish, and keep it from starting.
        let mut quiet = self.inner.lock_housekeeping();
        while self.inner.housekeep_locked(&mut quiet)? {}
        match &self.inner.hash {
            Some(hash) => hash.verify(&self.inner),
            None => verify(&self.inner),
        }
    }

    /// How the database was created.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Backs `bytes` of the heap with memory now (over all partitions), instead of step by step when it is
    /// needed. Useful before measuring.
    pub fn prefault(&self, bytes: u64) {
        for partition in &self.inner.partitions {
            partition.grow_to(bytes / u64::from(self.inner.config.partitions));
        }
    }

    /// Recovery: applies one logged transaction with its own timestamp, without logging it again.
    /// A change that is older than what the key has is ignored. No other session may write meanwhile.
    /// For many transactions, [`Database::replayer`] is faster.
    pub fn replay(&self, txn: &LogTxn) -> Result<()> {
        self.replayer()?.replay(txn)
    }

    /// Recovery: applies logged transactions, one after the other, until it is dropped; then
    /// [`Database::set_clock`] is to follow.
    pub fn replayer(&self) -> Result<Replayer> {
        self.begin_replay();
        Ok(Replayer::new(self.session()?))
    }

    /// Recovery begins: overwritten values need not wait for the log's reader, because the rings are empty.
    pub(crate) fn begin_replay(&self) {
        self.inner.state().drained_ts.store(u64::MAX, Ordering::SeqCst);
    }

    /// Recovery: the clock continues after `ts`, and everything up to it counts as durable.
    pub fn set_clock(&self, ts: u64) -> Result<()> {
        self.inner.state().clock.store(ts, Ordering::SeqCst);
        self.inner.state().durable_ts.store(ts, Ordering::SeqCst);
        self.inner.end_replay();
        Ok(())
    }

    /// The log writer's side of the rings; `None` without a log, or if one exists already.
    pub fn log_reader(&self) -> Option<LogReader<'_>> {
        if self.inner.config.wal_ring_bytes == 0 || self.inner.log_reader_taken.swap(true, Ordering::SeqCst) {
            return None;
        }
        let ring = self.inner.hash.as_ref().and_then(HashStore::take_log);
        Some(LogReader::new(&self.inner, ring))
    }

    /// Tells the engine how far the log is on disk, and whether it can be written.
    pub fn set_durable(&self, ts: u64, failed: bool) {
        self.inner.state().durable_ts.store(ts, Ordering::Release);
        self.inner.state().wal_failed.store(u32::from(failed), Ordering::Release);
    }

    /// Every commit up to this timestamp is on disk.
    pub fn durable_ts(&self) -> u64 {
        self.inner.state().durable_ts.load(Ordering::Acquire)
    }

    /// What everything that works on the database shares.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.housekeeper.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Programs {
    fn of(object: LoadedObject) -> Result<Self> {
        Ok(Programs {
            local: object.program("kdb_local")?,
            batch: object.program("kdb_local_batch")?,
            noop: object.program("kdb_local_noop")?,
            replay: object.program("kdb_local_replay").ok(),
            collect: object.program("kdb_local_collect")?,
            evacuate: object.program("kdb_local_evacuate").ok(),
            object,
        })
    }
}

impl Inner {
    /// The maps of a partition, for loading a further object (server, application) on the same data.
    pub(crate) fn share_maps(&self, partition: u32) -> Result<HashMap<String, OwnedFd>> {
        let object = &self.programs(partition).object;
        let own = if self.hash.is_some() { crate::hashmap::MAPS } else { &["kdb_arena"] };
        SHARED_MAPS.iter().chain(own).map(|&name| Ok((name.to_string(), object.share_map(name)?))).collect()
    }

    /// The constants of a partition's programs.
    pub(crate) fn object_config(&self, partition: u32) -> crate::layout::kdb_config {
        match &self.hash {
            Some(hash) => hash.config(),
            None => self.partitions[partition as usize].geometry.config(self.seed),
        }
    }
}

fn possible_cpus() -> Result<u32> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(|e| bpf::kernel_error("cannot count the CPUs", e))?;
    match u32::try_from(cpus) {
        Ok(n) if (1..=KDB_MAX_CPUS).contains(&n) => Ok(n),
        _ => Err(Error::Config(format!("{cpus} CPUs; at most {KDB_MAX_CPUS} are supported"))),
    }
}
