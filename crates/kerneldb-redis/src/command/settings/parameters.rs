//! The parameters of CONFIG GET and CONFIG SET: how each of them is read, parsed and changed.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{DatabaseOptions, Settings};
use crate::limits::{ACL_LOG_ENTRIES_MAX, SLOW_LOG_ENTRIES_MAX};
use bedplate_kerneldb::limits::{
    EXPIRE_EFFORT_MAX, LOG_RING_BYTES_MAX, LOG_RING_BYTES_MIN, PARTITION_BYTES_MIN, USAGE_FACTOR_MAX,
    VERSIONS_MAX,
};
use bedplate_kerneldb::{Durability, EvictionPolicy};

/// Parses a value into options of a database; the error describes what is wrong with the value.
type OptionSetter = fn(&mut DatabaseOptions, &[u8]) -> Result<(), &'static str>;

/// Parses and stores a value; the error describes what is wrong with the value.
pub(super) type Setter = fn(&Settings, &[u8]) -> Result<(), &'static str>;

/// The way in which CONFIG SET changes a parameter.
#[derive(Clone, Copy)]
pub(super) enum Change {
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
pub(super) struct Parameter {
    pub name: &'static str,
    pub get: fn(&Settings) -> String,
    pub change: Change,
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
pub(super) const NO_SLOW_LOG: u64 = u64::MAX;

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

pub(super) static PARAMETERS: &[Parameter] = &[
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
