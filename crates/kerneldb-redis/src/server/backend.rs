//! Implements the services that commands need, on the database and its store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::admin_tasks::AdminTasks;
use super::data::{CurrentData, Data};
use super::gate::Gate;
use super::maps::Maps;
use super::rebuild::Rebuilds;
use super::statistics::{Statistics, Totals};
use super::stats::{Counters, ServerStats};
use super::{ServerConfig, UpgradeCheck, functions_file, users_file, verify};
use crate::command::{AdminTask, AdminTaskTicket, KernelActivity, Keyspace, Memory, ServerState, Services};
use bedplate_kerneldb::{
    Database, Durability, EngineKind, Error, HandlerInfo, ProcedureInfo, Result, SnapshotItem, Store,
    read_library,
};

/// The database behind a server, with or without a store that makes it durable. `Send + Sync`.
pub(super) struct Backend {
    data: Arc<CurrentData>,
    rebuilds: Rebuilds,
    maps: Arc<Maps>,
    server: Arc<ServerState>,
    tasks: AdminTasks,
    statistics: Statistics,
    gate: Gate,
    /// Users have lost rights, and the event loop has not taken their connections from the kernel yet. Meanwhile the gate is closed.
    restricts: AtomicBool,
    procedure_loading: bool,
    /// The server has a store, and not the database of another part of the program.
    has_store: bool,
    /// The check before an upgrade, or the reason why there can be none.
    upgrade: std::result::Result<UpgradeCheck, &'static str>,
}

impl Backend {
    pub(super) fn new(
        data: Data,
        maps: Arc<Maps>,
        server: Arc<ServerState>,
        config: &ServerConfig,
    ) -> Result<Self> {
        let database = &data.database;
        let totals = Totals::new(maps.stats()?, database);
        let (statistics, gate) = (Statistics::new(totals), maps.gate()?);
        let has_store = data.store.is_some();
        let data = Arc::new(CurrentData::new(data));
        let tasks = AdminTasks::start({
            let (data, server) = (data.clone(), server.clone());
            move |task| run_admin_task(task, &data.get(), &server).map_err(|e| format!("ERR {e}"))
        })?;
        let rebuilds = Rebuilds::new(config.log.clone());
        let upgrade = match &config.upgrade {
            Some(check) => Ok(check.clone()),
            None => Err("ERR the program that runs this server has no upgrades"),
        };
        Ok(Backend {
            data,
            rebuilds,
            maps,
            server,
            tasks,
            statistics,
            gate,
            restricts: AtomicBool::new(false),
            procedure_loading: config.procedure_loading,
            has_store,
            upgrade,
        })
    }

    /// The data that is served. Each rebuild of the database exchanges it.
    pub(super) fn current(&self) -> &Arc<CurrentData> {
        &self.data
    }

    /// The requests for other options of the database.
    pub(super) fn rebuild_requests(&self) -> &Rebuilds {
        &self.rebuilds
    }

    /// Asks for an upgrade. The error is the client's reply.
    pub(super) fn request_upgrade(&self) -> std::result::Result<Arc<AdminTaskTicket>, String> {
        if self.server.shutdown.is_under_way() {
            return Err("ERR the server is shutting down".into());
        }
        if !self.has_store {
            return Err(NO_STORE.into());
        }
        self.rebuilds.submit_upgrade(self.upgrade.as_ref().map_err(|reason| (*reason).to_owned())?)
    }

    /// Whether no administrative task waits or runs.
    pub(super) fn has_no_tasks(&self) -> bool {
        self.tasks.is_idle()
    }

    /// The totals of the activity so far, for [`Backend::count_on`].
    pub(super) fn totals(&self) -> Result<Totals> {
        Ok(Totals::new(self.maps.stats()?, &self.database()))
    }

    /// Counts the activity of another database, too. `last` are the totals with the one before.
    pub(super) fn count_on(&self, last: &Totals) {
        match self.totals() {
            Ok(first) => self.statistics.change_database(last, &first),
            Err(error) => tracing::warn!(%error, "statistics"),
        }
    }

    /// Whether a shutdown has its checkpoint, so that the server is to stop.
    pub(super) fn poll_shutdown(&self) -> bool {
        match self.server.shutdown.poll() {
            None => false,
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::error!(error, "no shutdown: the checkpoint failed");
                self.server.clients.resume_after_shutdown();
                self.pauses_changed();
                false
            }
        }
    }

    /// Takes a sample of the rate of commands, and opens the gate after a pause. The event loop must call it
    /// regularly.
    pub(super) fn sample(&self) {
        if self.gate.is_closed() && self.gate_times() == (0, 0) {
            self.set_gate(0, 0);
        }
        let commands = self.server.counters.commands.load(Ordering::Relaxed);
        self.statistics.sample(Instant::now(), commands + self.kernel_activity().commands);
    }

    fn set_gate(&self, all_until_ns: u64, writes_until_ns: u64) {
        if let Err(error) = self.gate.set(&self.database(), all_until_ns, writes_until_ns) {
            tracing::error!(%error, "commands that began before the pause may still be running");
        }
    }

    /// Whether connections of restricted users have to be taken from the kernel before the gate may open.
    pub(super) fn restricts(&self) -> bool {
        self.restricts.load(Ordering::Relaxed)
    }

    /// The kernel answers no new request of connections of restricted users. Opens the gate when none of their requests is running.
    pub(super) fn end_restriction(&self) {
        if let Err(error) = self.database().wait_for_programs() {
            tracing::error!(%error, "the kernel answers nobody until it is certain that no command of a restricted user is running");
            return;
        }
        self.restricts.store(false, Ordering::Relaxed);
        self.pauses_changed();
    }

    /// The gate's times: for all commands, and for those that write.
    fn gate_times(&self) -> (u64, u64) {
        if self.restricts() || self.server.reports_every_command() {
            return (u64::MAX, u64::MAX);
        }
        let (pauses, now) = (self.server.clients.pauses(), self.now());
        (kernel_time(pauses.all_until_ms, now), kernel_time(pauses.writes_until_ms, now))
    }

    pub(super) fn database(&self) -> Arc<Database> {
        self.data.get().database.clone()
    }

    pub(super) fn store(&self) -> Option<Arc<Store>> {
        self.data.get().store.clone()
    }

    fn no_data_dir() -> String {
        "ERR there is no data directory".into()
    }
}

/// The reply to a change of a database that belongs to another part of the program.
pub(super) const NO_STORE: &str = "ERR the program that runs the server has kept the database for itself";

/// Runs an administrative task; the text is its report.
fn run_admin_task(task: AdminTask, data: &Data, server: &ServerState) -> Result<String> {
    let (database, store) = (&*data.database, data.store.as_deref());
    match (task, store) {
        (AdminTask::LoadLibrary { file, replace }, store) => {
            let (library, elf) = read_library(Path::new(&file))?;
            match store {
                Some(store) => store.load_library(&library, &elf, replace),
                None => database.load_library(&library, &elf, replace),
            }
            .map(|names| names.join(" "))
        }
        (AdminTask::UnloadLibrary(library), store) => {
            let done = match store {
                Some(store) => store.unload_library(&library)?,
                None => database.unload_library(&library)?,
            };
            if done { Ok(library) } else { Err(Error::Library(format!("there is no library {library}"))) }
        }
        (AdminTask::ChangeFunctions(change), store) => {
            if let Some(data_dir) = store.and_then(Store::data_dir) {
                functions_file::write(data_dir, &change.payload())?;
            }
            Ok(server.functions.publish(&change))
        }
        (AdminTask::WriteUsers(text), _) => {
            let path = server.settings.acl_file().ok_or(Error::State)?;
            users_file::write(path, &text).map(|()| String::new())
        }
        (AdminTask::AttachHandler { name, target }, _) => {
            database.attach_handler(&name, &target).map(|()| String::new())
        }
        (AdminTask::DetachHandler { name, target }, _) => {
            database.detach_handler(&name, &target).map(|()| String::new())
        }
        (AdminTask::Checkpoint, Some(store)) => {
            store.checkpoint().map(|info| format!("{} keys at timestamp {}", info.entries, info.ts))
        }
        (AdminTask::Checkpoint, None) => Err(Error::State),
        (AdminTask::Rebuild(_) | AdminTask::Upgrade, _) => Err(Error::State),
        (AdminTask::Verify, store) => verify::running(database, store),
    }
}

/// The time of the kernel's clock at which the wall clock shows `unix_ms`; 0 if that is in the past.
fn kernel_time(unix_ms: u64, now: Duration) -> u64 {
    let left = u128::from(unix_ms).saturating_mul(1_000_000).saturating_sub(now.as_nanos());
    let clock = clock_gettime(ClockId::Monotonic);
    let clock_ns = clock.tv_sec as u64 * 1_000_000_000 + clock.tv_nsec as u64;
    if left == 0 { 0 } else { clock_ns.saturating_add(u64::try_from(left).unwrap_or(u64::MAX)) }
}

impl Services for Backend {
    fn server(&self) -> &Arc<ServerState> {
        &self.server
    }

    fn len(&self) -> u64 {
        self.database().len()
    }

    fn positions(&self) -> u64 {
        self.data.get().positions
    }

    fn rebuilds(&self) -> u64 {
        self.rebuilds.count()
    }

    fn draw_position(&self, random: u64) -> Result<u64> {
        Ok(self.database().snapshot()?.draw_position(random))
    }

    fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64> {
        self.database().snapshot()?.scan(from, to, f)
    }

    fn procedures(&self) -> Vec<ProcedureInfo> {
        self.database().procedures()
    }

    fn handlers(&self) -> Vec<HandlerInfo> {
        let handlers = self.database().handlers();
        handlers.inspect_err(|error| tracing::warn!(%error, "handlers")).unwrap_or_default()
    }

    fn clock(&self) -> u64 {
        self.database().clock()
    }

    fn durable_ts(&self) -> u64 {
        self.database().durable_ts()
    }

    fn logged(&self) -> bool {
        self.store().is_some_and(|store| store.wal().is_some())
    }

    fn log_failed(&self) -> bool {
        self.database().stats().log_failed
    }

    fn request_durable(&self, ts: u64) {
        let store = self.store();
        if let Some(wal) = store.as_ref().and_then(|store| store.wal()) {
            wal.request(ts);
        }
    }

    fn start_admin_task(&self, task: AdminTask) -> std::result::Result<Arc<AdminTaskTicket>, String> {
        if task == AdminTask::Checkpoint && !self.can_save() {
            return Err(Self::no_data_dir());
        }
        if !self.procedure_loading && task.changes_procedures() {
            return Err("ERR clients may not load procedures or attach handlers: start the server with \
                        --allow-procedure-loading, or with --procedure FILE and --attach HANDLER=EVENT"
                .into());
        }
        if let AdminTask::Rebuild(options) = task {
            if !self.has_store {
                return Err(NO_STORE.into());
            }
            if options.durability != Durability::Off && !self.can_save() {
                return Err(Self::no_data_dir());
            }
            if self.server.shutdown.is_under_way() {
                return Err("ERR the server is shutting down".into());
            }
            return self.rebuilds.submit(options);
        }
        if task == AdminTask::Upgrade {
            return self.request_upgrade();
        }
        self.tasks.submit(task)
    }

    fn can_save(&self) -> bool {
        self.store().is_some_and(|store| store.data_dir().is_some())
    }

    fn save_in_background(&self) -> std::result::Result<bool, String> {
        let store = self.store().filter(|store| store.data_dir().is_some());
        let store = store.ok_or_else(Self::no_data_dir)?;
        store.request_checkpoint().map_err(|e| format!("ERR {e}"))
    }

    fn saving(&self) -> bool {
        self.store().is_some_and(|store| store.checkpoint_status().running.is_some())
    }

    fn last_save(&self) -> (u64, bool) {
        let status = self.store().map(|store| store.checkpoint_status()).unwrap_or_default();
        let ended = status.last.map(|info| (info.created_ms + info.took.as_millis() as u64) / 1000);
        (ended.unwrap_or(self.server.started_ms / 1000), status.last_error.is_none())
    }

    fn memory(&self) -> Memory {
        let stats = self.database().stats();
        let heap = self.database().heap_stats();
        Memory { used: stats.memory_used.saturating_sub(heap.free_bytes), limit: stats.memory_limit, heap }
    }

    fn storage_engine(&self) -> EngineKind {
        self.database().config().engine
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let s = self.database().stats();
        let heap = self.database().heap_stats();
        // Counters that cannot be read are shown as zeros, as if nothing had happened in the kernel.
        let kernel = self.maps.stats().inspect_err(|e| tracing::warn!(error = %e, "statistics"));
        let kernel =
            kernel.map_or_else(|_| ServerStats::default(), |k| ServerStats::new(&k, &Counters::default()));
        vec![
            ("kernel_commands", kernel.kernel_commands),
            ("local_commands", kernel.local_commands),
            ("kernel_packets", kernel.packets),
            ("kernel_input_bytes", kernel.request_bytes),
            ("kernel_output_bytes", kernel.kernel_reply_bytes),
            ("kernel_handed_up", kernel.passed),
            ("kernel_back_pressure", kernel.back_pressure),
            ("gets", s.gets),
            ("get_misses", s.get_misses),
            ("sets", s.sets),
            ("deletes", s.deletes),
            ("begins", s.begins),
            ("begins_read_only", s.begins_read_only),
            ("commits", s.commits),
            ("commits_read_only", s.commits_read_only),
            ("rollbacks", s.rollbacks),
            ("conflicts", s.conflicts),
            ("no_memory", s.no_memory),
            ("no_version", s.no_version),
            ("wal_full", s.wal_full),
            ("transactions_timed_out", s.transactions_timed_out),
            ("transactions_too_large", s.transactions_too_large),
            ("snapshots_revoked", s.snapshots_revoked),
            ("versions_pruned", s.versions_pruned),
            ("entries_collected", s.entries_collected),
            ("read_retries", s.read_retries),
            ("keys", s.keys),
            ("bytes", s.bytes),
            ("expiring_keys", s.expiring_keys),
            ("expired", s.expired),
            ("memory_used", s.memory_used),
            ("memory_committed", s.memory_committed),
            ("memory_limit", s.memory_limit),
            ("index_bucket_bytes", heap.bucket_bytes),
            ("heap_bytes", heap.heap_bytes()),
            ("heap_slab_bytes", heap.slab_bytes),
            ("heap_allocated_bytes", heap.allocated_bytes),
            ("heap_entry_bytes", heap.entry_bytes),
            ("heap_free_slabs", heap.free_slabs()),
            ("heap_evacuating_slabs", heap.evacuating_slabs),
            ("heap_evacuated_bytes", heap.evacuated_bytes),
            ("heap_reclaimed_slabs", heap.reclaimed_slabs),
            ("entries", s.entries),
            ("clock", s.clock),
            ("durable_ts", s.durable_ts),
            ("active_snapshots", s.active_snapshots),
        ]
    }

    fn kernel_activity(&self) -> KernelActivity {
        let stale_percent = self.database().expiry_stats().stale_percent;
        let totals = self.totals().inspect_err(|e| tracing::warn!(error = %e, "statistics"));
        totals.map_or_else(|_| KernelActivity::default(), |now| self.statistics.activity(&now, stale_percent))
    }

    fn reset_statistics(&self) {
        match self.totals() {
            Ok(totals) => self.statistics.reset(totals),
            Err(error) => tracing::warn!(%error, "statistics"),
        }
    }

    fn keyspace(&self) -> Keyspace {
        let stats = self.database().stats();
        let average_ttl_ms = self.database().expiry_stats().average_ttl_ms;
        Keyspace { keys: stats.keys, expiring: stats.expiring_keys, average_ttl_ms }
    }

    fn settings_changed(&self) {
        if let Err(error) = self.database().set_expire_effort(self.server.settings.expire_effort()) {
            tracing::error!(%error, "the effort of expiry stays as it is");
        }
        let (factor, decay_minutes) = self.server.settings.usage_factor();
        let database = self.database();
        let changed = database.set_eviction(self.server.settings.eviction());
        if let Err(error) = changed.and_then(|()| database.set_usage_factor(factor, decay_minutes)) {
            tracing::error!(%error, "the policy of eviction stays as it is");
        }
        self.pauses_changed();
    }

    fn read_users_file(&self) -> std::result::Result<Vec<u8>, String> {
        let path = self.server.settings.acl_file().ok_or("there is no ACL file")?;
        users_file::read(path).map_err(|error| error.to_string())
    }

    fn rights_changed(&self) {
        self.restricts.store(true, Ordering::Relaxed);
        self.pauses_changed();
    }

    fn pauses_changed(&self) {
        let (all, writes) = self.gate_times();
        self.set_gate(all, writes);
    }
}
