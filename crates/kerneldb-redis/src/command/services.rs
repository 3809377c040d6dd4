//! The services of the server that commands use.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::acl::{self, Acl};
use super::calls::Calls;
use super::clients::Clients;
use super::errors::Errors;
use super::latency::Latency;
use super::monitor::Monitors;
use super::settings::{DatabaseOptions, Settings, Startup};
use super::shutdown::Shutdown;
use super::slowlog::SlowLog;
use crate::script::{Functions, FunctionsChange, Scripts};
use bedplate_kerneldb::{
    EngineKind, HandlerInfo, HandlerTarget, HeapStats, ProcedureInfo, Result, SnapshotItem,
};

/// State that all connections of a server share. `Send + Sync`.
#[derive(Debug)]
pub struct ServerState {
    /// The connections.
    pub clients: Clients,
    /// The users.
    pub(super) acl: Acl,
    /// The configuration.
    pub settings: Settings,
    /// Counters for INFO.
    pub counters: Counters,
    /// The shutdown that is under way, if there is one.
    pub shutdown: Shutdown,
    /// Lua scripts.
    pub scripts: Scripts,
    /// The connections that see every command.
    pub monitors: Monitors,
    /// The commands that have taken long, as events.
    pub latency: Latency,
    /// The slow log.
    pub slow_log: SlowLog,
    /// Functions.
    pub functions: Functions,
    /// Time at which the server started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// 40 hexadecimal digits that identify this run of the server.
    pub run_id: String,
}

impl ServerState {
    /// The state of a server that starts now.
    pub fn new(startup: Startup) -> Arc<ServerState> {
        let now = unix_time();
        let run_id = hex::encode(rand::random::<[u8; 20]>());
        let acl = Acl::default();
        acl.set_default_password(startup.password.as_bytes()).expect("one user is below the limits");
        Arc::new(ServerState {
            clients: Clients::default(),
            acl,
            settings: Settings::new(startup),
            counters: Counters::default(),
            shutdown: Shutdown::default(),
            monitors: Monitors::default(),
            latency: Latency::default(),
            slow_log: SlowLog::default(),
            scripts: Scripts::default(),
            functions: Functions::default(),
            started_ms: now.as_millis() as u64,
            run_id,
        })
    }
}

impl ServerState {
    /// Whether the event loop has to execute every command, because each one is to be reported.
    pub fn reports_every_command(&self) -> bool {
        let logs_all = self.settings.slow_log_threshold().is_some_and(|threshold| threshold.is_zero());
        logs_all || self.monitors.exist()
    }

    /// Replaces all users by those of an ACL file, before there are connections. The error names the file and each bad line.
    pub fn load_users(&self, text: &[u8], file: &str) -> std::result::Result<(), String> {
        let loaded = self.acl.load(text, file, self.settings.opens_channels());
        // There were no other rules before.
        loaded.map(drop).map_err(|errors| {
            let errors = errors.strip_suffix(acl::UNCHANGED).unwrap_or(&errors).trim_end();
            format!("the ACL file {file} is not loaded: {errors}")
        })
    }

    /// All users, as the contents of an ACL file.
    pub fn users_text(&self) -> Vec<u8> {
        self.acl.text()
    }

    /// Whether the next program can read [`ServerState::users_text`].
    pub fn check_users(&self) -> std::result::Result<(), String> {
        self.acl.check_text(self.settings.opens_channels())
    }

    /// Whether everybody can act as the user `default` without a password.
    pub fn is_open(&self) -> bool {
        self.acl.default_user().is_open()
    }

    /// Gives the user `default` the password in the settings. The error is that of a limit; the user keeps its password then.
    pub fn apply_password(&self) -> std::result::Result<(), String> {
        self.acl.set_default_password(&self.settings.password())
    }
}

/// Counters since the start, or since CONFIG RESETSTAT.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "named as in INFO")]
pub struct Counters {
    pub connections: AtomicU64,
    pub rejected_connections: AtomicU64,
    pub commands: AtomicU64,
    pub errors: AtomicU64,
    pub input_bytes: AtomicU64,
    pub output_bytes: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub retries: AtomicU64,
    pub conflicts: AtomicU64,
    pub calls: Calls,
    pub errors_by_code: Errors,
}

impl Counters {
    /// The counters that count in user space only.
    pub(super) fn all(&self) -> [(&'static str, &AtomicU64); 10] {
        [
            ("total_connections_received", &self.connections),
            ("total_commands_processed", &self.commands),
            ("total_net_input_bytes", &self.input_bytes),
            ("total_net_output_bytes", &self.output_bytes),
            ("rejected_connections", &self.rejected_connections),
            ("keyspace_hits", &self.hits),
            ("keyspace_misses", &self.misses),
            ("total_error_replies", &self.errors),
            ("bedplate_retries", &self.retries),
            ("bedplate_conflicts", &self.conflicts),
        ]
    }

    pub(super) fn reset(&self) {
        self.all().into_iter().for_each(|(_, counter)| counter.store(0, Relaxed));
        self.calls.reset();
        self.errors_by_code.reset();
    }

    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}

/// Time since the Unix epoch.
pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Long work that a command starts. The command waits for its end without blocking its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminTask {
    /// SAVE, BEDPLATE CHECKPOINT: takes a checkpoint that has everything committed before.
    Checkpoint,
    /// BEDPLATE VERIFY: checks every invariant.
    Verify,
    /// CONFIG SET of options of the database: rebuilds the database with them.
    Rebuild(DatabaseOptions),
    /// BEDPLATE UPGRADE: another program goes on with the server's connections and data.
    Upgrade,
    /// PROC LOAD, PROC REPLACE: loads the library in a file of the server's machine.
    LoadLibrary {
        /// The file, as the client has named it.
        file: String,
        /// Whether a library of the same name is replaced.
        replace: bool,
    },
    /// PROC UNLOAD: removes a library.
    UnloadLibrary(String),
    /// PROC ATTACH: runs a handler at each event from now on.
    AttachHandler {
        /// The handler.
        name: String,
        /// The event.
        target: HandlerTarget,
    },
    /// FUNCTION LOAD and others: writes the libraries of functions to their file, and then lets the change take effect. The report is the name
    /// of the library that is loaded.
    ChangeFunctions(FunctionsChange),
    /// ACL SAVE: writes this text to the ACL file.
    WriteUsers(Vec<u8>),
    /// PROC DETACH: does so no longer.
    DetachHandler {
        /// The handler.
        name: String,
        /// The event.
        target: HandlerTarget,
    },
}

impl AdminTask {
    /// Whether it changes what code runs in the kernel, which clients may do only if the server allows it.
    pub fn changes_procedures(&self) -> bool {
        !matches!(
            self,
            AdminTask::Checkpoint
                | AdminTask::Verify
                | AdminTask::Rebuild(_)
                | AdminTask::Upgrade
                | AdminTask::ChangeFunctions(_)
                | AdminTask::WriteUsers(_)
        )
    }
}

/// Outcome of an administrative task: a report, or the error for the client, with its code in front.
pub type AdminTaskResult = std::result::Result<String, String>;

/// An administrative task that was started. The worker sets its result, and the client's connection polls it.
#[derive(Debug, Default)]
pub struct AdminTaskTicket(OnceLock<AdminTaskResult>);

impl AdminTaskTicket {
    /// A ticket that has its result.
    pub fn finished(result: AdminTaskResult) -> Arc<AdminTaskTicket> {
        Arc::new(AdminTaskTicket(result.into()))
    }

    /// The result; `None` while the task waits or runs.
    pub fn result(&self) -> Option<&AdminTaskResult> {
        self.0.get()
    }

    /// Sets the result, once.
    pub fn finish(&self, result: AdminTaskResult) {
        let _ = self.0.set(result);
    }
}

/// Activity that commands in user space do not count: in the kernel and in the engine. It counts from the start of the
/// server or the last [`Services::reset_statistics`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelActivity {
    /// Commands that the kernel has answered.
    pub commands: u64,
    /// Request bytes of these.
    pub input_bytes: u64,
    /// Reply bytes of these.
    pub output_bytes: u64,
    /// GETs of these that found a value.
    pub hits: u64,
    /// GETs of these that found none.
    pub misses: u64,
    /// Calls of these by name of the command.
    pub calls: Vec<(&'static str, u64)>,
    /// CALLs of these that the procedure refused.
    pub refusals: u64,
    /// Keys that were deleted or overwritten after their expiry had passed.
    pub expired: u64,
    /// Estimated percentage of expired keys among the keys with an expiry.
    pub expired_stale_percent: f64,
    /// Times that the active expiry has reached its bound of processor time while many keys were expired.
    pub expired_time_cap_reached: u64,
    /// Keys that were evicted.
    pub evicted: u64,
    /// Commands per second over the last seconds, of the kernel and of user space.
    pub ops_per_second: u64,
}

/// The keys, for INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keyspace {
    /// Number of keys.
    pub keys: u64,
    /// Keys that have an expiry.
    pub expiring: u64,
    /// Their average time to live in milliseconds.
    pub average_ttl_ms: u64,
}

/// Memory of the database in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory in use.
    pub used: u64,
    /// Most that may be used; 0 = not limited.
    pub limit: u64,
    /// Use of the heap.
    pub heap: HeapStats,
}

/// The services of the server around a connection. No method blocks for long, because event loops call them.
pub trait Services {
    /// State that all connections of the server share.
    fn server(&self) -> &Arc<ServerState>;

    /// Time since the Unix epoch.
    fn now(&self) -> Duration {
        unix_time()
    }

    /// Number of keys, expired ones that are not collected yet included.
    fn len(&self) -> u64;

    /// Whether there is no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of scan positions. A key's position does not change while it exists, until the database is rebuilt.
    fn positions(&self) -> u64;

    /// Number of databases that have held the data before the present one. Keys have other scan positions in each.
    fn rebuilds(&self) -> u64 {
        0
    }

    /// A position that may have keys, drawn with a random number.
    fn draw_position(&self, random: u64) -> Result<u64>;

    /// Calls `f` for every key at positions `from..to` that a snapshot taken now has, expired ones included.
    /// It may go on to a later position than `to`; returns the position at which it has ended.
    fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64>;

    /// Commit timestamp of the newest commit.
    fn clock(&self) -> u64;

    /// Every commit up to this timestamp is on disk.
    fn durable_ts(&self) -> u64;

    /// Whether there is a log, so that commits become durable at all.
    fn logged(&self) -> bool;

    /// Whether the log cannot be written at the moment.
    fn log_failed(&self) -> bool;

    /// Asks the log to make `ts` durable soon.
    fn request_durable(&self, ts: u64);

    /// Starts an administrative task, whose work begins after this call. The client gets this error and that of the
    /// next method, with the code in front: `ERR the disk is full`.
    fn start_admin_task(&self, task: AdminTask) -> std::result::Result<Arc<AdminTaskTicket>, String>;

    /// The procedures that CALL finds.
    fn procedures(&self) -> Vec<ProcedureInfo> {
        Vec::new()
    }

    /// The handlers of the libraries.
    fn handlers(&self) -> Vec<HandlerInfo> {
        Vec::new()
    }

    /// Asks for a checkpoint in the background. `Ok(false)` if one is running.
    fn save_in_background(&self) -> std::result::Result<bool, String>;

    /// Whether the database can be saved at all.
    fn can_save(&self) -> bool {
        true
    }

    /// Whether a checkpoint is being written.
    fn saving(&self) -> bool;

    /// Unix time in seconds of the last successful checkpoint, or of the start; and whether the last
    /// attempt succeeded.
    fn last_save(&self) -> (u64, bool);

    /// Memory of the database.
    fn memory(&self) -> Memory;

    /// The storage engine of the database.
    fn storage_engine(&self) -> EngineKind {
        EngineKind::default()
    }

    /// Engine statistics for BEDPLATE STATS and INFO: names and values.
    fn statistics(&self) -> Vec<(&'static str, u64)>;

    /// Activity in the kernel and in the engine.
    fn kernel_activity(&self) -> KernelActivity {
        KernelActivity::default()
    }

    /// Makes [`Services::kernel_activity`] count from zero again.
    fn reset_statistics(&self) {}

    /// The keys.
    fn keyspace(&self) -> Keyspace {
        Keyspace { keys: self.len(), ..Keyspace::default() }
    }

    /// Applies changed settings that are not read at each use.
    fn settings_changed(&self) {}

    /// Reads the ACL file ([`Settings::acl_file`]). The error is for the client.
    fn read_users_file(&self) -> std::result::Result<Vec<u8>, String> {
        Err("there is no ACL file".into())
    }

    /// Must be called when users have lost rights, before the client gets the reply. When it returns, the kernel answers no connection whose
    /// user is restricted.
    fn rights_changed(&self) {}

    /// Must be called when [`Clients::pauses`](super::Clients::pauses) or [`ServerState::reports_every_command`] has changed. When it
    /// returns, the kernel answers no command that is paused or reported.
    fn pauses_changed(&self) {}
}
