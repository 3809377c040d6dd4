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
    arena::{Geometry, LogReader, MIN_ARENA, Partition, Snapshot, StateView, Verified, verify},
    attach::{self, Attachment},
    bpf::{self, ArenaMapping, ArrayMapping, LoadedObject, MapFds, ObjectSpec, Program, Reservation},
    config::{Config, EngineKind},
    hashmap::HashStore,
    layout::{
        KDB_MARKER_SEQ_BITS, KDB_MAX_CPUS, MARKER, kdb_cpu_stats, kdb_ctx, kdb_io, kdb_state, kdb_trace,
    },
    memory_wait::Seen,
    stats::Stats,
    trace::Trace,
};

/// The object with the operators for user space.
const LOCAL_ARENA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/local_arena.bpf.o"));
/// Maps that every object of a database shares; the arena is per partition.
const SHARED_MAPS: [&str; 4] = ["kdb_contexts", "kdb_ios", "kdb_states", "kdb_traces"];
/// The background thread looks for work this often.
const TICK: Duration = Duration::from_millis(5);
/// Entries that one call of the collector visits.
const COLLECT_BUDGET: u64 = 4096;

/// The programs of one partition.
pub(crate) struct Programs {
    pub local: Program,
    pub batch: Program,
    pub noop: Program,
    collect: Program,
    object: LoadedObject,
}

/// Everything that a database is made of.
pub(crate) struct Inner {
    pub config: Config,
    /// Arena engine: the arenas.
    pub partitions: Vec<Partition>,
    /// Hash-map engine: the maps.
    pub hash: Option<HashStore>,
    programs: Vec<Programs>,
    pub contexts: ArrayMapping<kdb_ctx>,
    pub ios: ArrayMapping<kdb_io>,
    pub traces: ArrayMapping<kdb_trace>,
    states: ArrayMapping<kdb_state>,
    free_sessions: Mutex<Vec<u32>>,
    housekeeping: Mutex<()>,
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

    /// Partition of a key, and the key's hash.
    pub(crate) fn partition_of(&self, key: &[u8]) -> u32 {
        if self.config.partitions == 1 {
            return 0;
        }
        let hash = xxhash_rust::xxh64::xxh64(key, self.seed);
        (((hash >> 48) * u64::from(self.config.partitions)) >> 16) as u32
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

    /// Makes memory available in a partition that ran out of it; false at the limit.
    pub(crate) fn grow(&self, partition: u32) -> bool {
        self.partitions.get(partition as usize).is_some_and(Partition::grow)
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

    /// Bytes backed by memory in a partition.
    pub(crate) fn committed(&self, partition: u32) -> u64 {
        self.partitions.get(partition as usize).map_or(0, Partition::committed)
    }

    /// Makes more than `seen` bytes available in a partition, at the nth attempt of one operation; false at
    /// the limit.
    pub(crate) fn grow_beyond(&self, partition: u32, seen: u64, attempt: u32) -> bool {
        if let Some(hash) = &self.hash {
            return hash.wait_for_memory(attempt);
        }
        let Some(partition) = self.partitions.get(partition as usize) else { return false };
        // Blocks that the log's reader has got meanwhile may be all that it takes.
        partition.grow_beyond(seen) || attempt == 0 && partition.has_limbo() && self.housekeep().is_ok()
    }

    /// What a write that finds no memory at the limit can hope for.
    pub(crate) fn memory_seen(&self, partition: u32) -> Seen {
        let state = self.state();
        // The clock after the partition: what waits is of commits up to there.
        let drained = state.drained_ts.load(Ordering::SeqCst);
        let partition = self.partitions.get(partition as usize);
        let waiting = partition.is_some_and(Partition::has_limbo);
        let ready = partition.is_some_and(|partition| partition.limbo_ends(drained));
        Seen { waiting, ready, drained, clock: state.clock.load(Ordering::SeqCst) }
    }

    /// Whether memory should be made available in a partition before a transaction writes to it.
    pub(crate) fn wants_memory(&self, partition: u32) -> bool {
        self.partitions.get(partition as usize).is_some_and(Partition::wants_memory)
    }

    /// One round of background work; returns whether there may be more.
    fn housekeep(&self) -> Result<bool> {
        let _only_one = self.housekeeping.lock().unwrap_or_else(|e| e.into_inner());
        self.housekeep_locked()
    }

    fn housekeep_locked(&self) -> Result<bool> {
        let mut more = false;
        for (partition, programs) in self.partitions.iter().zip(&self.programs) {
            if partition.wants_memory() {
                more |= partition.grow();
            }
            if partition.has_garbage() || partition.has_limbo() {
                let before = self.stats();
                let visited = programs.collect.run(&mut [COLLECT_BUDGET, 0, 0])?;
                let after = self.stats();
                // What a snapshot holds is queued again: looking at once would not help.
                let collected = (after.versions_pruned, after.entries_collected)
                    != (before.versions_pruned, before.entries_collected);
                more |= u64::from(visited) == COLLECT_BUDGET && collected;
                more |= after.blocks_waited - before.blocks_waited >= COLLECT_BUDGET;
            }
        }
        if self.hash.as_ref().is_some_and(HashStore::has_garbage) {
            let visited = self.programs[0].collect.run(&mut [COLLECT_BUDGET, 0, 0])?;
            more |= u64::from(visited) == COLLECT_BUDGET;
        }
        self.update_clock_offset();
        Ok(more)
    }

    /// Expiry compares Unix time; the kernel side only has the monotonic clock.
    fn update_clock_offset(&self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = monotonic.tv_sec as u64 * 1000 + monotonic.tv_nsec as u64 / 1_000_000;
        self.state().clock_offset_ms.store(unix.wrapping_sub(monotonic), Ordering::Relaxed);
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let state = self.states.get(0);
        for cpu in 0..KDB_MAX_CPUS as usize {
            // SAFETY: in bounds; counters are read whole, and may be a little behind each other.
            let per_cpu: kdb_cpu_stats = unsafe { (&raw const (*state).stats[cpu]).read_volatile() };
            stats.add(&per_cpu);
        }
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
                ],
                sizes: &[],
                arena_address: Some(window.address()),
            })?;
            if index == 0 {
                for name in SHARED_MAPS {
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
            free_sessions: Mutex::new((0..config.max_sessions).rev().collect()),
            housekeeping: Mutex::new(()),
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

    /// Checks every invariant of the mapped memory: index, versions, and that each byte of the heap is
    /// accounted for. No operator may run and no transaction may be open meanwhile; [`Error::Corrupt`]
    /// says what is wrong.
    pub fn verify(&self) -> Result<Verified> {
        // The collector is the only other one at work: let it finish, and keep it from starting.
        let _quiet = self.inner.housekeeping.lock().unwrap_or_else(|e| e.into_inner());
        while self.inner.housekeep_locked()? {}
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
        // Nothing of this is in the log rings: what is overwritten need not wait for the log's reader.
        self.inner.state().drained_ts.store(u64::MAX, Ordering::SeqCst);
        Ok(Replayer::new(self.session()?))
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
            collect: object.program("kdb_local_collect")?,
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
