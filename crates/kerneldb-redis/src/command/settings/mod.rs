//! The configuration that clients can see and change (CONFIG GET, CONFIG SET).
//!
//! Every value is an atomic or behind a lock of its own, so that connections read it on every command
//! without waiting for each other.

mod parameters;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::limits::SCRIPT_TIME_MAX;
use bedplate_kerneldb::limits::LOG_RING_BYTES_DEFAULT;
use bedplate_kerneldb::{Durability, EngineKind, EvictionPolicy, Timeouts};
use parameters::{Change, NO_SLOW_LOG, PARAMETERS, Parameter, Setter};

/// Options with which a database is made. CONFIG SET changes them by a rebuild of the database ([`AdminTask::Rebuild`]).
///
/// [`AdminTask::Rebuild`]: super::AdminTask::Rebuild
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseOptions {
    /// Default durability of a session's commits; there is a log unless it is off.
    pub durability: Durability,
    /// Memory limit in bytes; 0 = as much as the database was created with.
    pub memory_bytes: u64,
    /// Versions of a key.
    pub versions: u32,
    /// Size of each log ring in bytes; it matters if there is a log.
    pub wal_ring_bytes: u32,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        DatabaseOptions {
            durability: Durability::Async,
            memory_bytes: 0,
            versions: 4,
            wal_ring_bytes: LOG_RING_BYTES_DEFAULT,
        }
    }
}

/// Settings that are fixed when the server starts, and initial values of the others.
#[derive(Clone, Debug)]
pub struct Startup {
    /// Addresses listened on.
    pub bind: String,
    /// Port listened on.
    pub port: u16,
    /// Data directory; empty without one.
    pub dir: String,
    /// Options of the database.
    pub database: DatabaseOptions,
    /// Most connections at once.
    pub max_clients: u64,
    /// Seconds after which an idle connection is closed; 0 = never.
    pub timeout_s: u64,
    /// The storage engine of the database.
    pub engine: EngineKind,
    /// Which keys are evicted when memory becomes short.
    pub eviction: EvictionPolicy,
    /// Password of the user `default`, empty = none.
    pub password: String,
    /// The ACL file, if there is one.
    pub acl_file: Option<PathBuf>,
    /// Time limits of the database's transactions and snapshots.
    pub timeouts: Arc<Timeouts>,
}

impl Default for Startup {
    fn default() -> Self {
        Startup {
            bind: "127.0.0.1".into(),
            port: 6380,
            dir: String::new(),
            database: DatabaseOptions::default(),
            max_clients: 4096,
            timeout_s: 0,
            engine: EngineKind::default(),
            eviction: EvictionPolicy::default(),
            password: String::new(),
            acl_file: None,
            timeouts: Arc::default(),
        }
    }
}

/// The configuration of a running server. All methods can be called from any thread.
#[derive(Debug)]
pub struct Settings {
    startup: Startup,
    /// Values of all parameters at the start, in the order of [`PARAMETERS`].
    initial: Vec<String>,
    /// Parameters that clients of the program before have changed.
    inherited: Mutex<BTreeSet<&'static str>>,
    database: RwLock<DatabaseOptions>,
    password: RwLock<Vec<u8>>,
    max_clients: AtomicU64,
    timeout_s: AtomicU64,
    lock_timeout_ms: AtomicU64,
    script_time_ms: AtomicU64,
    bulk_bytes: AtomicU64,
    input_bytes: AtomicU64,
    output_bytes: AtomicU64,
    expire_effort: AtomicU64,
    eviction: RwLock<EvictionPolicy>,
    usage_factor: AtomicU64,
    usage_decay_minutes: AtomicU64,
    slow_log_us: AtomicU64,
    latency_ms: AtomicU64,
    slow_log_length_max: AtomicU64,
    acl_log_entries: AtomicU64,
    opens_channels: AtomicBool,
}

impl Settings {
    /// The configuration at the start.
    pub fn new(startup: Startup) -> Self {
        let mut settings = Settings {
            initial: Vec::new(),
            inherited: Mutex::default(),
            password: RwLock::new(startup.password.clone().into_bytes()),
            max_clients: startup.max_clients.into(),
            timeout_s: startup.timeout_s.into(),
            lock_timeout_ms: 1000.into(),
            script_time_ms: (SCRIPT_TIME_MAX.as_millis() as u64).into(),
            bulk_bytes: (512 << 20).into(),
            input_bytes: (64 << 20).into(),
            output_bytes: (1 << 20).into(),
            expire_effort: 1.into(),
            eviction: RwLock::new(startup.eviction),
            usage_factor: 10.into(),
            usage_decay_minutes: 1.into(),
            slow_log_us: 10_000.into(),
            latency_ms: 0.into(),
            slow_log_length_max: 128.into(),
            acl_log_entries: 128.into(),
            opens_channels: false.into(),
            database: startup.database.into(),
            startup,
        };
        settings.initial = settings.all().map(|(_, value)| value).collect();
        settings
    }

    /// Names and values of the parameters that CONFIG SET has changed, here or in the program before.
    pub fn changed(&self) -> Vec<(&'static str, Vec<u8>)> {
        let inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self
            .all()
            .zip(&self.initial)
            .filter(|((name, value), initial)| value != *initial || inherited.contains(name));
        let bytes = |(name, value): (&'static str, String)| match name {
            // It need not be text.
            "requirepass" => (name, self.password()),
            _ => (name, value.into_bytes()),
        };
        changed.map(|(now, _)| bytes(now)).collect()
    }

    /// Whether a change of the parameter rebuilds the database.
    pub fn is_database_option(name: &str) -> bool {
        let parameter = PARAMETERS.iter().find(|parameter| parameter.name == name);
        parameter.is_some_and(|parameter| matches!(parameter.change, Change::Rebuild(_)))
    }

    /// Changes parameters as CONFIG SET does, one after the other. Values that are not possible any more are left out, with a line in the
    /// log. Returns options of the database that differ, for [`Settings::set_database_options`].
    pub fn change_again<'a>(&self, changed: impl Iterator<Item = (&'a str, &'a [u8])>) -> DatabaseOptions {
        let mut options = self.database_options();
        // Whether there is a log decides which values `appendfsync` can have.
        let (last, first): (Vec<_>, Vec<_>) = changed.partition(|(name, _)| *name == "appendfsync");
        for (name, value) in first.into_iter().chain(last) {
            let parameter = PARAMETERS.iter().find(|parameter| parameter.name == name);
            let done = match parameter.map(|parameter| parameter.change) {
                Some(Change::Now(set)) => set(self, value),
                Some(Change::Rebuild(set)) => set(&mut options, value),
                _ => Err("there is no such parameter"),
            };
            match (done, parameter) {
                (Ok(()), Some(parameter)) => {
                    self.inherited.lock().unwrap_or_else(PoisonError::into_inner).insert(parameter.name);
                }
                (Err(why), _) => {
                    tracing::warn!(name, "a parameter that was changed has its first value again: {why}");
                }
                (Ok(()), None) => {}
            }
        }
        options
    }

    /// The settings of the start.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// The options of the present database.
    pub fn database_options(&self) -> DatabaseOptions {
        *self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database was rebuilt with these options.
    pub fn set_database_options(&self, options: DatabaseOptions) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = options;
    }

    /// Most connections at once; further clients get an error and are closed.
    pub fn max_clients(&self) -> u64 {
        self.max_clients.load(Relaxed)
    }

    /// Seconds after which an idle connection is closed; 0 = never.
    pub fn timeout_s(&self) -> u64 {
        self.timeout_s.load(Relaxed)
    }

    /// Longest time of a script.
    pub fn script_time_ms(&self) -> u64 {
        self.script_time_ms.load(Relaxed)
    }

    /// Time for which a command outside a transaction is retried while keys are locked.
    pub fn lock_timeout_ms(&self) -> u64 {
        self.lock_timeout_ms.load(Relaxed)
    }

    /// Longest bulk string of a request in bytes (`proto-max-bulk-len`).
    pub fn bulk_limit(&self) -> u64 {
        self.bulk_bytes.load(Relaxed)
    }

    /// Most input of one connection that is held in bytes (`client-query-buffer-limit`).
    pub fn input_limit(&self) -> usize {
        self.input_bytes.load(Relaxed) as usize
    }

    /// Bytes of replies after which no further request is run until they are sent
    /// (`client-output-buffer-limit`).
    pub fn output_limit(&self) -> usize {
        self.output_bytes.load(Relaxed) as usize
    }

    /// Effort of the active expiry (`active-expire-effort`).
    pub fn expire_effort(&self) -> u32 {
        self.expire_effort.load(Relaxed) as u32
    }

    /// Which keys are evicted when memory becomes short (`maxmemory-policy`).
    pub fn eviction(&self) -> EvictionPolicy {
        *self.eviction.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How accesses are counted for the policies by frequency: `lfu-log-factor` and `lfu-decay-time`.
    pub fn usage_factor(&self) -> (u32, u32) {
        (self.usage_factor.load(Relaxed) as u32, self.usage_decay_minutes.load(Relaxed) as u32)
    }

    /// The time from which on a command is logged as a slow one; `None` = none is (`slowlog-log-slower-than`).
    pub fn slow_log_threshold(&self) -> Option<Duration> {
        let us = self.slow_log_us.load(Relaxed);
        (us != NO_SLOW_LOG).then(|| Duration::from_micros(us))
    }

    /// The time from which on a command counts as an event of LATENCY; `None` = none does (`latency-monitor-threshold`).
    pub fn latency_threshold(&self) -> Option<Duration> {
        let ms = self.latency_ms.load(Relaxed);
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Most entries of the slow log (`slowlog-max-len`).
    pub fn slow_log_length_max(&self) -> usize {
        self.slow_log_length_max.load(Relaxed) as usize
    }

    /// The ACL file, if there is one.
    pub fn acl_file(&self) -> Option<&Path> {
        self.startup.acl_file.as_deref()
    }

    /// Most entries of ACL LOG.
    pub fn acl_log_entries(&self) -> usize {
        self.acl_log_entries.load(Relaxed) as usize
    }

    /// Whether a new user may use all channels.
    pub fn opens_channels(&self) -> bool {
        self.opens_channels.load(Relaxed)
    }

    /// The password that `requirepass` has set; empty = none.
    pub fn password(&self) -> Vec<u8> {
        self.password.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fsync_policy(&self) -> &'static str {
        match self.database_options().durability {
            Durability::Off => "no",
            Durability::Async => "everysec",
            Durability::Sync => "always",
        }
    }

    /// Names and values of all parameters.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        PARAMETERS.iter().map(|p| (p.name, (p.get)(self)))
    }

    /// Changes several parameters, or none of them. Returns the options with which the database has to be rebuilt, if it has to; they
    /// become visible by [`Settings::set_database_options`]. `set_password` gives the user `default` another password. The error is the
    /// reply's text.
    pub(super) fn change(
        &self,
        pairs: &[(&[u8], &[u8])],
        set_password: impl Fn(&[u8]) -> Result<(), String>,
    ) -> Result<Option<DatabaseOptions>, String> {
        let find = |name: &[u8]| PARAMETERS.iter().find(|p| name.eq_ignore_ascii_case(p.name.as_bytes()));
        let failed = |name: &str, why: &str| {
            Err(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
        };
        let mut parameters = Vec::new();
        for (i, (name, value)) in pairs.iter().enumerate() {
            let shown = String::from_utf8_lossy(name);
            let Some(parameter) = find(name) else {
                return Err(format!("ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"));
            };
            if matches!(parameter.change, Change::Never) {
                return failed(&shown, "can't set immutable config");
            }
            if pairs[..i].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return failed(&shown, "duplicate parameter");
            }
            parameters.push((parameter, *value));
        }
        let present = self.database_options();
        let mut options = present;
        // Whether there is a log decides which values `appendfsync` can have. The password comes last, because nothing restores it.
        parameters.sort_by_key(|(parameter, _)| match parameter.name {
            "requirepass" => 2,
            "appendfsync" => 1,
            _ => 0,
        });
        for (parameter, value) in &parameters {
            if let Change::Rebuild(set) = parameter.change
                && let Err(why) = set(&mut options, value)
            {
                return failed(parameter.name, why);
            }
        }
        let is_option =
            |(parameter, _): &&(&Parameter, &[u8])| matches!(parameter.change, Change::Rebuild(_));
        if options != present {
            return match parameters.iter().find(|parameter| !is_option(parameter)) {
                Some((other, _)) => {
                    failed(other.name, "cannot be set together with an option of the database")
                }
                None => Ok(Some(options)),
            };
        }
        let mut undo: Vec<(Setter, String)> = Vec::new();
        for (Parameter { name, get, change }, value) in parameters.iter().filter(|p| !is_option(p)) {
            let before = get(self);
            let set: Setter = match change {
                Change::Now(set) => *set,
                _ if before.as_bytes().eq_ignore_ascii_case(value) => continue,
                _ => |_, _| Err("can only be set when the server starts"),
            };
            let done = match *name {
                "requirepass" => set_password(value),
                _ => Ok(()),
            };
            if let Err(why) = done.and_then(|()| set(self, value).map_err(str::to_owned)) {
                for (set, before) in undo {
                    // A value that was read from the parameter is always accepted again.
                    let _ = set(self, before.as_bytes());
                }
                return failed(name, &why);
            }
            undo.push((set, before));
        }
        Ok(None)
    }
}
