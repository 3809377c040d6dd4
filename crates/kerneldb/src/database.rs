//! The database handle: the type that users open, and the owner of the background threads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    Application, Error, EvictionPolicy, EvictionStats, ExpiryStats, HandlerInfo, HandlerTarget, LogReader,
    LogTxn, ProcedureInfo, Replayer, Result, Session, Snapshot, SuspendedHandler, Timeouts, Trace, Verified,
    attach::{self, Attachment, LoadedObject},
    config::Config,
    engine::{DumpMethod, Engine, HeapStats},
    eviction::Evictor,
    expirer::Expirer,
    limits::USAGE_FACTOR_MAX,
    session::{self, TraceProgram},
    stats::Stats,
};

/// The background thread looks for work this often.
const TICK: Duration = Duration::from_millis(5);

/// A database in the kernel. `Send + Sync`; wrap it in an `Arc`. The data is lost when the last handle and the last
/// session are dropped, unless it was logged or checkpointed.
pub struct Database {
    engine: Arc<Engine>,
    stop: Arc<AtomicBool>,
    housekeeper: Option<JoinHandle<()>>,
    expirer: Option<Expirer>,
    evictor: Option<Evictor>,
    /// The program that runs traces, once a caller has asked for one.
    traces: Mutex<Option<Arc<TraceProgram>>>,
}

impl Database {
    /// Loads the programs and creates an empty database.
    pub fn create(config: Config) -> Result<Database> {
        let engine = Arc::new(Engine::create(config)?);
        let stop = Arc::new(AtomicBool::new(false));
        let housekeeper = {
            let (engine, stop) = (engine.clone(), stop.clone());
            let builder = std::thread::Builder::new().name("kdb-housekeep".into());
            let body = move || {
                while !stop.load(Ordering::Relaxed) {
                    match engine.housekeep() {
                        Ok(true) => {}
                        Ok(false) => std::thread::park_timeout(TICK),
                        Err(e) => {
                            tracing::error!("background work failed: {e}");
                            std::thread::park_timeout(Duration::from_secs(1));
                        }
                    }
                }
            };
            bedplate_threads::spawn(builder, body)
                .map_err(|e| Error::io("cannot start the background thread", e))?
        };
        let expirer = Some(Expirer::start(engine.clone())?);
        let evictor = Some(Evictor::start(engine.clone())?);
        Ok(Database {
            engine,
            stop,
            housekeeper: Some(housekeeper),
            expirer,
            evictor,
            traces: Mutex::default(),
        })
    }

    /// Opens a session.
    pub fn session(&self) -> Result<Session> {
        Session::open(self.engine.clone())
    }

    /// Loads an eBPF object of an application, bound to the data of one partition. It includes
    /// `bedplate/kdb.h` (folder `bpf/include` of this crate).
    pub fn load_application(&self, elf: &[u8], partition: u32) -> Result<Application> {
        Application::load(self.engine.clone(), elf, partition)
    }

    /// Loads a library, which [`sdk::compile`](crate::sdk::compile) makes. Sessions then call its procedures
    /// (`bedplate/procedure.h`) by name ([`Session::call`]), and its handlers (`bedplate/handler.h`) can be attached
    /// ([`Database::attach_handler`]). Returns the names of both.
    ///
    /// With `replace`, the library of the same name is replaced as a whole if there is one. Calls that run are not affected. New
    /// handlers take the places of those of the same names, and other handlers are detached.
    ///
    /// # Errors
    ///
    /// [`Error::Library`] if the library has neither procedures nor handlers, if it has handlers and the database is on hash
    /// maps, if it is an object for arenas alone and the database is on hash maps or has several partitions, if it was compiled with
    /// the headers of another version, or if the kernel refuses it; if one of its procedures or handlers is in another library; if
    /// the library is loaded already and not to be replaced; or at a limit ([`crate::limits::PROCEDURES_MAX`],
    /// [`crate::limits::HANDLERS_MAX`], [`crate::limits::LIBRARY_BYTES_MAX`]). An error changes nothing.
    pub fn load_library(&self, library: &str, elf: &[u8], replace: bool) -> Result<Vec<String>> {
        session::load_library(&self.engine, library, elf, replace, || Ok(()))
    }

    /// Removes a library and detaches its handlers; false if there is none. Calls that run end normally.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]; then the library is still there.
    pub fn unload_library(&self, library: &str) -> Result<bool> {
        let _changes = self.engine.procedures.lock_changes();
        self.engine.remove_library(library)
    }

    /// The procedures that can be called by name.
    pub fn procedures(&self) -> Vec<ProcedureInfo> {
        session::list_procedures(&self.engine)
    }

    /// The libraries that are loaded: their names and the contents of their files, as [`Database::load_library`] takes them.
    pub fn libraries(&self) -> BTreeMap<String, Arc<[u8]>> {
        self.engine.procedures.files()
    }

    /// Number of I/O buffers (`kdb_ios`) that are claimed at the moment, for leak checks.
    pub fn claimed_io_buffers(&self) -> u32 {
        self.engine.claimed_ios()
    }

    /// Number of I/O buffers (`kdb_ios`). A program of a further object may claim one by compare-and-swap, as sessions do.
    pub fn io_buffers(&self) -> u32 {
        self.engine.ios.len()
    }

    /// Whether the caller becomes the server whose programs in `kdb_call_returns` calls on connections return to. One server at a time
    /// can be it. It calls [`Database::release_connection_calls`] when its connections are gone.
    pub fn claim_connection_calls(&self) -> bool {
        self.engine.connection_calls.claim_server()
    }

    /// Removes the programs in `kdb_call_returns`.
    pub fn release_connection_calls(&self) {
        self.engine.connection_calls.release_server();
    }

    /// Attaches a handler to an event of the kernel. From now on each such event runs the handler, in a transaction of its own,
    /// until [`Database::detach_handler`], until the handler's library is removed, or until the process ends.
    ///
    /// # Errors
    ///
    /// [`Error::Library`] if there is no such handler or network interface, if the handler is for other events, if it is attached
    /// to this event already, or at [`crate::limits::HANDLER_TARGETS_MAX`]; [`Error::Io`] if the kernel refuses.
    pub fn attach_handler(&self, name: &str, target: &HandlerTarget) -> Result<()> {
        self.engine.handlers.attach(name, target)
    }

    /// Detaches a handler from an event. Runs that have begun may go on for a moment ([`Database::wait_for_programs`]).
    ///
    /// # Errors
    ///
    /// [`Error::Library`] if there is no such handler, or if it is not attached to this event.
    pub fn detach_handler(&self, name: &str, target: &HandlerTarget) -> Result<()> {
        self.engine.handlers.detach(name, target)
    }

    /// Detaches all handlers from all events. Runs that have begun may go on for a moment.
    pub fn detach_handlers(&self) {
        self.engine.handlers.detach_all();
    }

    /// Leaves the events of all handlers to stand-ins, which need no database and fail each event. So this database can be dropped, and
    /// another one can take the events ([`Database::resume_handlers`]). Timers stop. When this returns, no handler runs.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Kernel`] if the kernel refuses; then everything is as before.
    pub fn suspend_handlers(&self) -> Result<Vec<SuspendedHandler>> {
        self.engine.suspend_handlers()
    }

    /// Attaches handlers to the events that handlers of the same names had here or in another database, and goes on with their counts.
    /// A handler that is not loaded, or that cannot be attached, loses its events; the log says so.
    pub fn resume_handlers(&self, suspended: Vec<SuspendedHandler>) {
        self.engine.resume_handlers(suspended);
    }

    /// The handlers of all libraries, the events that they are attached to, and their counts since their library was loaded.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the counts cannot be read.
    pub fn handlers(&self) -> Result<Vec<HandlerInfo>> {
        session::list_handlers(&self.engine)
    }

    /// Runs a handler of packets (tc or XDP) for a packet that was not received, `repeat` times, whether it is attached or not.
    /// Each run is a transaction that is committed. Returns the last verdict and the average duration of a run.
    ///
    /// # Errors
    ///
    /// [`Error::Library`] if there is no such handler, or if it is not for packets; [`Error::Io`] if the kernel refuses the
    /// packet, for instance one that is shorter than an Ethernet header.
    pub fn run_handler(&self, name: &str, packet: &[u8], repeat: u32) -> Result<(i32, Duration)> {
        session::run_handler(&self.engine, name, packet, repeat)
    }

    /// Loads a further eBPF object onto the data of one partition ([`crate::attach`]). The data stays as long as the
    /// database or the object does.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is no such partition or the object was compiled for the other storage engine,
    /// [`Error::Kernel`] if the kernel refuses the object.
    pub fn attach(&self, attachment: Attachment<'_>) -> Result<LoadedObject> {
        attach::load(&self.engine, attachment)
    }

    /// Returns when every eBPF program that was running at the call has ended, including those of other objects.
    ///
    /// Takes as long as an RCU grace period, some milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel refuses the request.
    pub fn wait_for_programs(&self) -> Result<()> {
        self.engine.wait_for_programs()
    }

    /// Claims a trace, for running many operations in one call. The first call loads the program that runs traces.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if all traces are in use, [`Error::Config`] for a database with several partitions.
    pub fn trace(&self) -> Result<Trace> {
        if self.config().partitions != 1 {
            return Err(Error::Config("traces need a database with one partition".into()));
        }
        let mut loaded = self.traces.lock().unwrap_or_else(|e| e.into_inner());
        let program = match &mut *loaded {
            Some(program) => program,
            none => none.insert(Arc::new(TraceProgram::load(&self.engine)?)),
        };
        Trace::claim(self.engine.clone(), program.clone())
    }

    /// Takes a snapshot for scanning.
    pub fn snapshot(&self) -> Result<Snapshot<'_>> {
        self.engine.snapshot()
    }

    /// Sets how much processor time the active expiry takes, from 1 (the default) to
    /// [`EXPIRE_EFFORT_MAX`](crate::limits::EXPIRE_EFFORT_MAX) times 2.5 % of one processor. It takes up to 43 % while
    /// many keys are expired. 0 switches it off: expired keys then take memory until they are written.
    pub fn set_expire_effort(&self, effort: u32) -> Result<()> {
        self.engine.expiry.set_effort(effort)
    }

    /// The effort of the active expiry.
    pub fn expire_effort(&self) -> u32 {
        self.engine.expiry.effort()
    }

    /// Figures of the active expiry.
    pub fn expiry_stats(&self) -> ExpiryStats {
        self.engine.expiry.stats()
    }

    /// Sets which keys are deleted when memory becomes short. Without a policy, which is the default, writes then fail.
    ///
    /// With a policy, keys are deleted as soon as less than a twelfth of a partition's memory is free. Each deletion is a
    /// transaction of its own, and is logged. Keys that an open transaction has locked stay. The least recently and the
    /// least frequently used keys are found approximately.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the storage engine does not keep what the policy needs to know: the hash-map engine evicts at
    /// random or by expiry only.
    pub fn set_eviction(&self, policy: EvictionPolicy) -> Result<()> {
        self.engine.set_eviction(policy)
    }

    /// The policy of eviction.
    pub fn eviction(&self) -> EvictionPolicy {
        self.engine.eviction.policy()
    }

    /// Sets how the policies by frequency count accesses. An access of a key with a count of 5 + n is counted with the probability
    /// 1 / (n * `factor` + 1), so with a factor of 10 (the default) the highest count, 255, stands for 300,000 accesses. Every
    /// `decay_minutes` (1 by default; 0 = never) the counts decrease by 1.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the factor exceeds [`USAGE_FACTOR_MAX`].
    pub fn set_usage_factor(&self, factor: u32, decay_minutes: u32) -> Result<()> {
        if factor > USAGE_FACTOR_MAX {
            return Err(Error::Config(format!("the factor of the usage must be 0 to {USAGE_FACTOR_MAX}")));
        }
        self.engine.set_usage_factor(factor, decay_minutes);
        Ok(())
    }

    /// The factor and the minutes of [`Database::set_usage_factor`].
    pub fn usage_factor(&self) -> (u32, u32) {
        let eviction = &self.engine.eviction;
        (eviction.usage_factor.load(Ordering::Relaxed), eviction.decay_minutes.load(Ordering::Relaxed))
    }

    /// Figures of eviction.
    pub fn eviction_stats(&self) -> EvictionStats {
        self.engine.eviction.stats()
    }

    /// Number of keys, including expired ones that were not deleted yet.
    pub fn len(&self) -> u64 {
        self.engine.stats().keys
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Commit timestamp of the newest completely visible commit.
    pub fn clock(&self) -> u64 {
        self.engine.state().clock.load(Ordering::Acquire)
    }

    /// Counters of the engine so far.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Use of the memory. The call takes time in proportion to it (about a tenth of a millisecond a gibibyte). The
    /// hash-map engine reports zeros.
    pub fn heap_stats(&self) -> HeapStats {
        self.engine.heap_stats()
    }

    /// Checks every invariant of the mapped memory: index, versions, and that each byte of the heap is accounted for.
    /// No operator may run and no transaction may be open meanwhile. [`Error::Corrupt`] names the violated invariant.
    pub fn verify(&self) -> Result<Verified> {
        self.engine.verify()
    }

    /// Limits on the duration of transactions and snapshots; can be changed at any time.
    pub fn timeouts(&self) -> &Arc<Timeouts> {
        &self.engine.control.timeouts
    }

    /// The configuration with which the database was created.
    pub fn config(&self) -> &Config {
        self.engine.config()
    }

    /// Backs `bytes` of the heap with memory now (over all partitions), instead of step by step when needed. Useful
    /// before measuring.
    pub fn prefault(&self, bytes: u64) {
        self.engine.prefault(bytes);
    }

    /// Recovery: applies one logged transaction with its own timestamp, without logging it again. It ignores a change
    /// that is older than the key's version. No other session may write meanwhile. For many transactions,
    /// [`Database::replayer`] is faster.
    pub fn replay(&self, txn: &LogTxn) -> Result<()> {
        self.replayer()?.replay(txn)
    }

    /// Recovery: the replayer applies logged transactions, one after the other, until it is dropped. The caller must
    /// call [`Database::set_clock`] then.
    pub fn replayer(&self) -> Result<Replayer> {
        self.begin_replay();
        Ok(Replayer::new(self.session()?))
    }

    /// Recovery begins: overwritten values need not wait for the log's reader, because the rings are empty. The active
    /// expiry stops until [`Database::set_clock`], because its commits would take timestamps that are yet to be replayed.
    pub(crate) fn begin_replay(&self) {
        self.engine.expiry.close_gate(true);
        self.engine.state().drained_ts.store(u64::MAX, Ordering::SeqCst);
    }

    /// The engine below the database.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Recovery: the clock continues after `ts`, and everything up to it counts as durable.
    pub fn set_clock(&self, ts: u64) -> Result<()> {
        self.engine.state().clock.store(ts, Ordering::SeqCst);
        self.engine.state().durable_ts.store(ts, Ordering::SeqCst);
        self.engine.control.end_replay();
        self.engine.close_reserves();
        self.engine.expiry.close_gate(false);
        Ok(())
    }

    /// The log writer's side of the rings; `None` without a log, or if one exists already.
    pub fn log_reader(&self) -> Option<LogReader<'_>> {
        self.engine.log_reader()
    }

    /// Tells the engine how far the log is on disk, and whether it can be written.
    pub fn set_durable(&self, ts: u64, failed: bool) {
        self.engine.state().durable_ts.store(ts, Ordering::Release);
        self.engine.state().wal_failed.store(u32::from(failed), Ordering::Release);
    }

    /// Every commit up to this timestamp is on disk.
    pub fn durable_ts(&self) -> u64 {
        self.engine.state().durable_ts.load(Ordering::Acquire)
    }

    /// Reads every element of the index and of the value maps through the `bpf` system call, and calls `f` with its key
    /// and value. For index entries these are the database's key and the entry's bytes; for values, the version's id
    /// and the bytes of its size class. Returns the number of elements. This measures the cost of a checkpoint without
    /// shared memory; for a consistent one use [`Database::snapshot`].
    ///
    /// Only for the hash-map engine ([`Error::State`] otherwise).
    pub fn dump_hash_maps(&self, method: DumpMethod, f: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        self.engine.dump_maps(method, f)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.evictor = None;
        self.expirer = None;
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.housekeeper.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
