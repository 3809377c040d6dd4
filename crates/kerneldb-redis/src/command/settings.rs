//! The configuration that clients can see and change (CONFIG GET, CONFIG SET).
//!
//! Every value is an atomic or behind a lock of its own, so that connections read it on every command
//! without waiting for each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::limits::{ACL_LOG_ENTRIES_MAX, SCRIPT_TIME_MAX, SLOW_LOG_ENTRIES_MAX};
use bedplate_kerneldb::limits::{
    EXPIRE_EFFORT_MAX, LOG_RING_BYTES_DEFAULT, LOG_RING_BYTES_MAX, LOG_RING_BYTES_MIN, PARTITION_BYTES_MIN,
    USAGE_FACTOR_MAX, VERSIONS_MAX,
};
use bedplate_kerneldb::{Durability, EngineKind, EvictionPolicy, Timeouts};

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

/// Parses a value into options of a database; the error describes what is wrong with the value.
type OptionSetter = fn(&mut DatabaseOptions, &[u8]) -> Result<(), &'static str>;

/// Parses and stores a value; the error describes what is wrong with the value.
type Setter = fn(&Settings, &[u8]) -> Result<(), &'static str>;

/// The way in which CONFIG SET changes a parameter.
#[derive(Clone, Copy)]
enum Change {
    /// Never. Redis refuses every value of these parameters as well.
    Never,
    /// Only at the start. CONFIG SET accepts the parameter's present value, because tools that restore a configuration
    /// set every parameter that Redis can change.
    AtStart,
    /// Parses the value and stores it.
    Now(Setter),
    /// Parses the value. The database is rebuilt with it.
    Rebuild(OptionSetter),
}

/// A parameter, and the functions that read and write it.
struct Parameter {
    name: &'static str,
    get: fn(&Settings) -> String,
    change: Change,
}

/// Longest limit on the time of a script, in milliseconds: nobody is answered by the event loop meanwhile.
const SCRIPT_TIME_MS_MAX: u64 = 60_000;

/// Longest limit on transactions and snapshots in milliseconds; 0 means no limit.
const TIMEOUT_MS_MAX: u64 = i32::MAX as u64;

/// Sets `busy-reply-threshold`, whose old name is `lua-time-limit`.
fn set_script_time(settings: &Settings, value: &[u8]) -> Result<(), &'static str> {
    store(&settings.script_time_ms, value, 1, SCRIPT_TIME_MS_MAX)
}

/// The value of [`Settings::slow_log_us`] with which no command is logged.
const NO_SLOW_LOG: u64 = u64::MAX;

/// Sets `slowlog-log-slower-than`, which is -1 if no command is logged.
fn set_slow_log_threshold(settings: &Settings, value: &[u8]) -> Result<(), &'static str> {
    match value {
        b"-1" => settings.slow_log_us.store(NO_SLOW_LOG, Relaxed),
        _ => return store(&settings.slow_log_us, value, 0, i64::MAX as u64),
    }
    Ok(())
}

const NOT_INTEGER: &str = "argument couldn't be parsed into an integer";

const OUT_OF_RANGE: &str = "argument is out of range";

/// Parses a number within `from..=to`.
fn number(text: &[u8], from: u64, to: u64) -> Result<u64, &'static str> {
    let number = crate::resp::parse_i64(text).and_then(|n| u64::try_from(n).ok()).ok_or(NOT_INTEGER)?;
    if (from..=to).contains(&number) { Ok(number) } else { Err(OUT_OF_RANGE) }
}

/// Parses a number within `from..=to` and stores it.
fn store(at: &AtomicU64, text: &[u8], from: u64, to: u64) -> Result<(), &'static str> {
    at.store(number(text, from, to)?, Relaxed);
    Ok(())
}

/// Like [`number`], with `kb`, `mb` and `gb` (1024) as well as `k`, `m` and `g` (1000) behind the number.
fn bytes(text: &[u8], from: u64) -> Result<u64, &'static str> {
    let error = "argument must be a memory value";
    let lower = text.to_ascii_lowercase();
    let digits = lower.iter().take_while(|c| c.is_ascii_digit()).count();
    let unit: u64 = match &lower[digits..] {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return Err(error),
    };
    let number = crate::resp::parse_i64(&lower[..digits]).ok_or(error)? as u64;
    let number = number.checked_mul(unit).filter(|n| *n <= i64::MAX as u64).ok_or(error)?;
    if number < from { Err(OUT_OF_RANGE) } else { Ok(number) }
}

/// Parses a number of bytes and stores it.
fn store_bytes(at: &AtomicU64, text: &[u8], from: u64) -> Result<(), &'static str> {
    at.store(bytes(text, from)?, Relaxed);
    Ok(())
}

/// `appendonly`: whether there is a log. A log that is switched on is asynchronous, as Redis's is.
fn set_log(options: &mut DatabaseOptions, text: &[u8]) -> Result<(), &'static str> {
    let on = match &*text.to_ascii_lowercase() {
        b"yes" => true,
        b"no" => false,
        _ => return Err("argument must be 'yes' or 'no'"),
    };
    options.durability = match (on, options.durability) {
        (false, _) => Durability::Off,
        (true, Durability::Off) => Durability::Async,
        (true, durability) => durability,
    };
    Ok(())
}

/// `appendfsync`: the moment at which a write is acknowledged.
fn set_fsync(options: &mut DatabaseOptions, text: &[u8]) -> Result<(), &'static str> {
    options.durability = match (&*text.to_ascii_lowercase(), options.durability) {
        (b"no", Durability::Off) => Durability::Off,
        (b"no", _) => return Err("the log is always synced: 'appendonly no' switches it off"),
        (b"always" | b"everysec", Durability::Off) => {
            return Err("there is no log: set 'appendonly yes' first");
        }
        (b"always", _) => Durability::Sync,
        (b"everysec", _) => Durability::Async,
        _ => return Err("argument(s) must be one of the following: everysec, always, no"),
    };
    Ok(())
}

/// `maxmemory-policy`: one of Redis's policies, as far as the storage engine knows what it needs to.
fn set_eviction(settings: &Settings, text: &[u8]) -> Result<(), &'static str> {
    let name = std::str::from_utf8(text).unwrap_or_default();
    let policy: EvictionPolicy = name.parse().map_err(|_| {
        "argument(s) must be one of the following: volatile-lru, volatile-lfu, volatile-random, volatile-ttl, allkeys-lru, \
         allkeys-lfu, allkeys-random, noeviction"
    })?;
    if !settings.startup.engine.evicts(policy) {
        return Err(
            "the hash-map engine does not know how often keys are used: choose a policy at random, volatile-ttl or noeviction",
        );
    }
    *settings.eviction.write().unwrap_or_else(PoisonError::into_inner) = policy;
    Ok(())
}

/// `wal-ring-bytes`: a power of two.
fn set_ring(options: &mut DatabaseOptions, text: &[u8]) -> Result<(), &'static str> {
    let ring = u32::try_from(bytes(text, LOG_RING_BYTES_MIN.into())?).map_err(|_| OUT_OF_RANGE)?;
    if !ring.is_power_of_two() || ring > LOG_RING_BYTES_MAX {
        return Err("argument must be a power of two, 256 KiB to 1 GiB");
    }
    options.wal_ring_bytes = ring;
    Ok(())
}

/// `acl-pubsub-default`: whether a new user may use all channels. There is no publish and subscribe yet.
fn set_channels(settings: &Settings, value: &[u8]) -> Result<(), &'static str> {
    let all = match &*value.to_ascii_lowercase() {
        b"allchannels" => true,
        b"resetchannels" => false,
        _ => return Err("argument(s) must be one of the following: allchannels, resetchannels"),
    };
    settings.opens_channels.store(all, Relaxed);
    Ok(())
}

static PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "acl-pubsub-default",
        get: |s| if s.opens_channels() { "allchannels" } else { "resetchannels" }.into(),
        change: Change::Now(set_channels),
    },
    Parameter {
        name: "aclfile",
        get: |s| s.acl_file().map_or_else(String::new, |file| file.display().to_string()),
        change: Change::Never,
    },
    Parameter {
        name: "acllog-max-len",
        get: |s| s.acl_log_entries().to_string(),
        change: Change::Now(|s, v| store(&s.acl_log_entries, v, 0, ACL_LOG_ENTRIES_MAX as u64)),
    },
    Parameter {
        name: "active-expire-effort",
        get: |s| s.expire_effort().to_string(),
        change: Change::Now(|s, v| store(&s.expire_effort, v, 1, EXPIRE_EFFORT_MAX.into())),
    },
    Parameter { name: "appendfsync", get: |s| s.fsync_policy().into(), change: Change::Rebuild(set_fsync) },
    Parameter {
        name: "appendonly",
        get: |s| yes_no(s.database_options().durability != Durability::Off),
        change: Change::Rebuild(set_log),
    },
    Parameter { name: "bind", get: |s| s.startup.bind.clone(), change: Change::AtStart },
    Parameter {
        name: "client-output-buffer-limit",
        get: |s| s.output_limit().to_string(),
        change: Change::Now(|s, v| store_bytes(&s.output_bytes, v, 64 << 10)),
    },
    Parameter {
        name: "client-query-buffer-limit",
        get: |s| s.input_limit().to_string(),
        change: Change::Now(|s, v| store_bytes(&s.input_bytes, v, 1 << 20)),
    },
    Parameter {
        name: "busy-reply-threshold",
        get: |s| s.script_time_ms().to_string(),
        change: Change::Now(set_script_time),
    },
    Parameter { name: "daemonize", get: |_| "no".into(), change: Change::Never },
    Parameter { name: "databases", get: |_| "1".into(), change: Change::Never },
    Parameter { name: "dir", get: |s| s.startup.dir.clone(), change: Change::AtStart },
    Parameter {
        name: "lfu-decay-time",
        get: |s| s.usage_factor().1.to_string(),
        change: Change::Now(|s, v| store(&s.usage_decay_minutes, v, 0, i32::MAX as u64)),
    },
    Parameter {
        name: "lfu-log-factor",
        get: |s| s.usage_factor().0.to_string(),
        change: Change::Now(|s, v| store(&s.usage_factor, v, 0, USAGE_FACTOR_MAX.into())),
    },
    Parameter {
        name: "latency-monitor-threshold",
        get: |s| s.latency_ms.load(Relaxed).to_string(),
        change: Change::Now(|s, v| store(&s.latency_ms, v, 0, i64::MAX as u64)),
    },
    Parameter {
        name: "lock-timeout",
        get: |s| s.lock_timeout_ms().to_string(),
        change: Change::Now(|s, v| store(&s.lock_timeout_ms, v, 0, 60_000)),
    },
    Parameter {
        name: "lua-time-limit",
        get: |s| s.script_time_ms().to_string(),
        change: Change::Now(set_script_time),
    },
    Parameter {
        name: "maxclients",
        get: |s| s.max_clients().to_string(),
        change: Change::Now(|s, v| store(&s.max_clients, v, 1, s.startup.max_clients)),
    },
    Parameter {
        name: "maxmemory",
        get: |s| s.database_options().memory_bytes.to_string(),
        change: Change::Rebuild(|options, v| {
            options.memory_bytes = bytes(v, PARTITION_BYTES_MIN)?;
            Ok(())
        }),
    },
    Parameter {
        name: "maxmemory-policy",
        get: |s| s.eviction().name().into(),
        change: Change::Now(set_eviction),
    },
    Parameter { name: "port", get: |s| s.startup.port.to_string(), change: Change::AtStart },
    Parameter {
        name: "proto-max-bulk-len",
        get: |s| s.bulk_limit().to_string(),
        change: Change::Now(|s, v| store_bytes(&s.bulk_bytes, v, 1 << 20)),
    },
    Parameter {
        name: "requirepass",
        get: |s| String::from_utf8_lossy(&s.password()).into_owned(),
        change: Change::Now(|s, v| {
            *s.password.write().unwrap_or_else(PoisonError::into_inner) = v.to_vec();
            Ok(())
        }),
    },
    Parameter { name: "save", get: |_| String::new(), change: Change::AtStart },
    Parameter {
        name: "scan-grace",
        get: |s| s.startup.timeouts.scan_grace_ms.load(Relaxed).to_string(),
        change: Change::Now(|s, v| store(&s.startup.timeouts.scan_grace_ms, v, 0, TIMEOUT_MS_MAX)),
    },
    Parameter {
        name: "slowlog-log-slower-than",
        get: |s| s.slow_log_threshold().map_or("-1".into(), |threshold| threshold.as_micros().to_string()),
        change: Change::Now(set_slow_log_threshold),
    },
    Parameter {
        name: "slowlog-max-len",
        get: |s| s.slow_log_length_max().to_string(),
        change: Change::Now(|s, v| store(&s.slow_log_length_max, v, 0, SLOW_LOG_ENTRIES_MAX)),
    },
    Parameter {
        name: "snapshot-grace",
        get: |s| s.startup.timeouts.snapshot_grace_ms.load(Relaxed).to_string(),
        change: Change::Now(|s, v| store(&s.startup.timeouts.snapshot_grace_ms, v, 0, TIMEOUT_MS_MAX)),
    },
    Parameter {
        name: "timeout",
        get: |s| s.timeout_s().to_string(),
        change: Change::Now(|s, v| store(&s.timeout_s, v, 0, i32::MAX as u64)),
    },
    Parameter {
        name: "transaction-idle-timeout",
        get: |s| s.startup.timeouts.idle_ms.load(Relaxed).to_string(),
        change: Change::Now(|s, v| store(&s.startup.timeouts.idle_ms, v, 0, TIMEOUT_MS_MAX)),
    },
    Parameter {
        name: "transaction-timeout",
        get: |s| s.startup.timeouts.transaction_ms.load(Relaxed).to_string(),
        change: Change::Now(|s, v| store(&s.startup.timeouts.transaction_ms, v, 0, TIMEOUT_MS_MAX)),
    },
    Parameter {
        name: "versions",
        get: |s| s.database_options().versions.to_string(),
        change: Change::Rebuild(|options, v| {
            options.versions = number(v, 1, VERSIONS_MAX.into())? as u32;
            Ok(())
        }),
    },
    Parameter {
        name: "wal-ring-bytes",
        get: |s| s.database_options().wal_ring_bytes.to_string(),
        change: Change::Rebuild(set_ring),
    },
];

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
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
