//! The engine: the loaded programs, the maps that they share, and the storage engine with the data.
//!
//! The engine knows neither sessions nor the [`Database`](crate::Database) handle; both are built on it. Its parts know
//! each other from left to right: `timer`, `log`, `reaper`, `expiry`, `eviction`, `control`, `memory_wait`, `procedures`, `connection_calls`, `visits`,
//! `handlers`, `storage` (the interface of the storage engines), `merge`, `arena` and `hashmap` (the storage engines), `snapshot`,
//! `libraries`.
//!
//! Locks, in order: the gate of `expiry`, `housekeeping`, `free_sessions`, a partition's growth lock, the requests of `eviction`.
//! Only the first two are held while a program runs.

mod arena;
mod connection_calls;
mod control;
pub(crate) mod eviction;
mod expiry;
mod handlers;
mod hashmap;
mod housekeeping;
mod libraries;
mod log;
mod memory_wait;
mod merge;
mod procedures;
mod reaper;
mod snapshot;
mod storage;
mod timer;
mod visits;

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use connection_calls::ConnectionCalls;
pub(crate) use eviction::{Candidate, EvictionOrder, EvictionSource};
pub use eviction::{EvictionPolicy, EvictionStats};
pub use expiry::ExpiryStats;
pub(crate) use expiry::{ExpiryCursor, Look, Seen, thread_time, unix_ms};
pub use handlers::{Direction, HandlerCounts, HandlerKind, HandlerTarget, SuspendedHandler};
pub(crate) use handlers::{HandlerProgram, Handlers, RegisteredHandler, Trigger};
pub(crate) use libraries::{Library, VerifiedProcedure};
pub use log::{LogReader, OpRef, TxnSink};
pub(crate) use memory_wait::{MemoryPressure, MemoryWait};
pub(crate) use procedures::{Procedures, Registered};
pub use snapshot::Snapshot;
pub use storage::{DumpMethod, SnapshotItem, Verified};

use crate::{
    Error, Result,
    bpf::{self, ArrayMapping, GracePeriod, LoadedObject, MapFds, Program},
    config::{Config, EngineKind},
    layout::{kdb_call, kdb_config, kdb_io},
    limits::CPUS_MAX,
    stats::Stats,
};
use arena::ArenaStore;
pub use arena::HeapStats;
pub(crate) use arena::{LoadKey, Loaded, Loader};
use control::{Control, Secrets, StateView};
use eviction::Eviction;
use expiry::{Expiry, handler_sessions, sessions};
use hashmap::HashStore;
use housekeeping::Housekeeping;
use storage::{Room, Storage};
use visits::Visits;

/// Maps that every object of a database shares, whatever its storage engine.
const SHARED_MAPS: [&str; 4] = ["kdb_contexts", "kdb_ios", "kdb_calls", "kdb_states"];

/// The programs of one partition.
pub(crate) struct Programs {
    pub call: Program,
    pub noop: Program,
    reap: Program,
    collect: Program,
    /// Arena engine: moves values out of slabs that are being emptied.
    evacuate: Option<Program>,
    object: LoadedObject,
}

/// All parts of a database.
pub(crate) struct Engine {
    pub control: Control,
    storage: Box<dyn Storage>,
    programs: Vec<Programs>,
    pub ios: ArrayMapping<kdb_io>,
    /// The call of a procedure that has claimed the I/O buffer of the same index.
    pub calls: ArrayMapping<kdb_call>,
    pub procedures: Procedures,
    /// The procedures as programs on connections call them.
    pub connection_calls: ConnectionCalls,
    visits: Visits,
    pub handlers: Handlers,
    free_sessions: Mutex<Vec<u32>>,
    housekeeping: Mutex<Housekeeping>,
    grace: GracePeriod,
    log_reader_taken: AtomicBool,
    pub expiry: Expiry,
    pub eviction: Eviction,
}

impl Engine {
    /// Loads the programs and creates an empty database.
    pub(crate) fn create(config: Config) -> Result<Engine> {
        config.check()?;
        let ncpus = possible_cpus()?;
        let secrets = Secrets::draw()?;
        let ios = ncpus * 8 + 16;
        let sizes = [("kdb_contexts", sessions(&config, ncpus)), ("kdb_ios", ios), ("kdb_calls", ios)];
        let (storage, objects): (Box<dyn Storage>, _) = match config.engine {
            EngineKind::Arena => {
                let (store, objects) = ArenaStore::load(&config, ncpus, secrets, &sizes, &SHARED_MAPS)?;
                (Box::new(store), objects)
            }
            EngineKind::HashMap => {
                let (store, object) = HashStore::load(&config, ncpus, &sizes)?;
                (Box::new(store), vec![object])
            }
        };
        let max_sessions = config.max_sessions;
        let object = &objects[0];
        Ok(Engine {
            ios: ArrayMapping::new(object.map_fd("kdb_ios")?, ios)?,
            calls: ArrayMapping::new(object.map_fd("kdb_calls")?, ios)?,
            procedures: Procedures::default(),
            connection_calls: ConnectionCalls::new(sessions(&config, ncpus))?,
            visits: Visits::new(config.partitions)?,
            handlers: Handlers::new(ncpus),
            control: Control::new(config, ncpus, secrets, object)?,
            free_sessions: Mutex::new((0..max_sessions).rev().collect()),
            housekeeping: Mutex::default(),
            grace: GracePeriod::new()?,
            log_reader_taken: AtomicBool::new(false),
            expiry: Expiry::new(),
            eviction: Eviction::new(),
            storage,
            programs: objects.into_iter().map(Programs::of).collect::<Result<_>>()?,
        })
    }

    /// The configuration with which the database was created.
    pub(crate) fn config(&self) -> &Config {
        &self.control.config
    }

    /// Atomic view of the engine's global state.
    pub(crate) fn state(&self) -> &StateView {
        self.control.state()
    }

    /// The programs of a partition.
    pub(crate) fn programs(&self, partition: u32) -> &Programs {
        &self.programs[partition as usize]
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free_sessions.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes a free session index.
    pub(crate) fn claim_session(&self) -> Result<u32> {
        self.sessions().pop().ok_or(Error::NoSession(self.config().max_sessions))
    }

    /// Number of sessions in use.
    pub(crate) fn open_sessions(&self) -> usize {
        self.config().max_sessions as usize - self.sessions().len()
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

    /// Number of claimed I/O buffers.
    pub(crate) fn claimed_ios(&self) -> u32 {
        let claimed = |index| {
            // SAFETY: as in `claim_io`.
            let claimed = unsafe { AtomicU32::from_ptr(&raw mut (*self.ios.get(index)).claimed) };
            claimed.load(Ordering::Acquire) != 0
        };
        (0..self.ios.len()).filter(|index| claimed(*index)).count() as u32
    }

    /// Gives an I/O buffer back.
    pub(crate) fn release_io(&self, index: u32) {
        // SAFETY: as in `claim_io`.
        let claimed = unsafe { AtomicU32::from_ptr(&raw mut (*self.ios.get(index)).claimed) };
        claimed.store(0, Ordering::Release);
    }

    /// Returns when every program that was running at the call has ended.
    pub(crate) fn wait_for_programs(&self) -> Result<()> {
        self.grace.wait()
    }

    /// Makes memory available in a partition that ran out of it; false at the limit.
    pub(crate) fn grow(&self, partition: u32) -> bool {
        self.storage.grow(partition)
    }

    /// Bytes backed by memory in a partition.
    pub(crate) fn committed(&self, partition: u32) -> u64 {
        self.storage.committed(partition)
    }

    /// The state of the memory for a write that finds none at the limit.
    pub(crate) fn memory_pressure(&self, partition: u32) -> MemoryPressure {
        self.storage.memory_pressure(&self.control, partition)
    }

    /// Whether memory should be made available in a partition before a transaction writes to it.
    pub(crate) fn wants_memory(&self, partition: u32) -> bool {
        self.storage.wants_memory(partition)
    }

    /// Bytes of the log ring that a transaction writes to.
    pub(crate) fn log_ring_bytes(&self) -> u32 {
        self.storage.log_ring_bytes(&self.control)
    }

    /// Backs `bytes` of the heap with memory now, over all partitions.
    pub(crate) fn prefault(&self, bytes: u64) {
        self.storage.prefault(bytes / u64::from(self.storage.partitions()));
    }

    /// A loader for each partition, for recovery; none with the hash-map engine.
    pub(crate) fn loaders(&self) -> Vec<Loader<'_>> {
        self.storage.loaders()
    }

    /// Lets a partition grow into its reserve, which is for recovery.
    pub(crate) fn open_reserve(&self, partition: u32) {
        self.storage.open_reserve(partition);
    }

    /// Recovery is over: partitions grow to their limits only.
    pub(crate) fn close_reserves(&self) {
        self.storage.close_reserves();
    }

    /// Number of the bucket in a partition of keys with a hash.
    pub(crate) fn bucket_of(&self, partition: u32, hash: u64) -> u32 {
        self.storage.bucket_of(partition, hash)
    }

    /// The first arena, for tests that look at its memory.
    #[cfg(test)]
    fn first_arena(&self) -> &arena::Partition {
        self.storage.first_arena().expect("the arena engine has one")
    }

    /// The counters of the programs.
    fn counters(&self) -> Stats {
        let mut stats = Stats::default();
        self.control.add_statistics(&mut stats);
        stats
    }

    /// Use of the memory.
    pub(crate) fn heap_stats(&self) -> HeapStats {
        self.storage.heap_stats()
    }

    /// The statistics of the programs and of the storage engine.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.counters();
        self.storage.add_statistics(&mut stats);
        stats
    }

    /// A position before the first key, for the active expiry.
    pub(crate) fn expiry_cursor(&self) -> Box<dyn ExpiryCursor + '_> {
        self.storage.expiry_cursor()
    }

    /// Number of partitions.
    pub(crate) fn partitions(&self) -> u32 {
        self.storage.partitions()
    }

    /// The keys of a partition, for eviction.
    pub(crate) fn eviction_source(&self, partition: u32) -> Box<dyn EvictionSource + '_> {
        self.storage.eviction_source(partition)
    }

    /// The memory of a partition. The search for free memory ends when it has found `enough` bytes.
    pub(crate) fn room(&self, partition: u32, enough: u64) -> Room {
        self.storage.room(partition, enough)
    }

    /// The memory of keys is free that commits up to this timestamp have deleted: neither the log's reader nor a snapshot needs it.
    pub(crate) fn released_ts(&self) -> u64 {
        let read = self.storage.values_read_ts(&self.control);
        read.min(self.control.oldest_snapshot().unwrap_or(u64::MAX))
    }

    /// Sets which keys are evicted when memory becomes short.
    pub(crate) fn set_eviction(&self, policy: EvictionPolicy) -> Result<()> {
        if !self.config().engine.evicts(policy) {
            return Err(Error::Config(format!(
                "the hash-map engine does not know how often keys are used, so it cannot evict by {}; choose a policy \
                 at random, volatile-ttl, or noeviction",
                policy.name()
            )));
        }
        if policy != self.eviction.policy() {
            self.storage.set_usage_factor(self.eviction.usage_factor.load(Ordering::Relaxed));
            self.storage.set_usage_kind(policy.usage_kind());
            self.eviction.set_policy(policy);
        }
        Ok(())
    }

    /// Sets how accesses are counted.
    pub(crate) fn set_usage_factor(&self, factor: u32, decay_minutes: u32) {
        self.eviction.usage_factor.store(factor, Ordering::Relaxed);
        self.eviction.decay_minutes.store(decay_minutes, Ordering::Relaxed);
        self.storage.set_usage_factor(factor);
    }

    /// Registers a snapshot.
    pub(crate) fn snapshot(&self) -> Result<Snapshot<'_>> {
        Snapshot::register(&self.control, &*self.storage)
    }

    /// The consumer of the log rings; `None` without a log, or if one exists already.
    pub(crate) fn log_reader(&self) -> Option<LogReader<'_>> {
        if self.config().wal_ring_bytes == 0 || self.log_reader_taken.swap(true, Ordering::SeqCst) {
            return None;
        }
        Some(LogReader::new(self.storage.log(&self.control)))
    }

    /// Checks every invariant of the memory. No operator runs and no transaction is open meanwhile.
    pub(crate) fn verify(&self) -> Result<Verified> {
        // Only the background threads still work: this waits for them to finish, and keeps them from starting.
        let _no_expiry = self.expiry.pause();
        let mut quiet = self.lock_housekeeping();
        while self.housekeep_locked(&mut quiet)? {}
        self.storage.verify(&self.control)
    }

    /// Reads every element of the hash-map engine's maps.
    pub(crate) fn dump_maps(&self, method: DumpMethod, f: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        self.storage.dump_maps(method, f)
    }

    /// The maps of a partition, for loading a further object (server, application) on the same data.
    pub(crate) fn share_maps(&self, partition: u32) -> Result<MapFds> {
        let object = &self.programs(partition).object;
        let names = SHARED_MAPS.iter().chain(self.storage.maps());
        let mut maps = self.connection_calls.share_maps()?;
        maps.extend(self.visits.share_maps()?);
        for name in names {
            maps.insert((*name).to_owned(), object.share_map(name)?);
        }
        Ok(maps)
    }

    /// The constants of a partition's programs.
    pub(crate) fn object_config(&self, partition: u32) -> kdb_config {
        let handler_sessions = handler_sessions(self.config());
        kdb_config { handler_sessions, ..self.storage.constants(partition) }
    }

    /// A map that only objects for the other storage engine have.
    pub(crate) fn foreign_map(&self) -> &'static str {
        self.storage.foreign_map()
    }
}

/// Spreads threads over I/O buffers.
fn thread_hint() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static HINT: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    HINT.with(|h| *h)
}

impl Programs {
    fn of(object: LoadedObject) -> Result<Self> {
        Ok(Programs {
            call: object.program("kdb_call")?,
            noop: object.program("kdb_call_noop")?,
            reap: object.program("kdb_call_reap")?,
            collect: object.program("kdb_call_collect")?,
            evacuate: object.program("kdb_call_evacuate").ok(),
            object,
        })
    }
}

/// Number of processors that the machine can have.
pub(crate) fn possible_cpus() -> Result<u32> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(|e| bpf::kernel_error("cannot count the CPUs", e))?;
    match u32::try_from(cpus) {
        Ok(n) if (1..=CPUS_MAX).contains(&n) => Ok(n),
        _ => Err(Error::Config(format!("{cpus} CPUs; at most {CPUS_MAX} are supported"))),
    }
}
