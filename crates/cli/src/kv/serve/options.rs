//! The options of `bedplate kv serve`, and the configurations that they make.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{PathBuf, absolute};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use bedplate_kerneldb::checkpoint::CheckpointConfig;
use bedplate_kerneldb::recovery::RecoveryOptions;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{
    Config, Durability, EngineKind, EvictionPolicy, HandlerTarget, StoreConfig, Timeouts,
};
use bedplate_kerneldb_redis::server::{Batching, ServerConfig};
use clap::ValueEnum;

use crate::kv::target;
use crate::units::{parse_size, parse_time};

/// Arguments of `bedplate kv serve`. A time of 0 means never.
#[derive(clap::Args, Debug)]
#[command(args_override_self = true)]
pub struct Args {
    /// File with one option per line as it would be given here, without the dashes ("memory 4G"). Options
    /// on the command line win.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen on, alone or with a port.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1", value_parser = parse_bind)]
    bind: Bind,
    /// Port to listen on.
    #[arg(long, short, default_value_t = 6380)]
    port: u16,
    /// Directory of the log and the checkpoints.
    #[arg(long, value_name = "DIR", default_value = "data", alias = "data")]
    pub(super) data_dir: PathBuf,
    /// Keep nothing on disk: no data directory, no log, no checkpoints.
    #[arg(long)]
    pub(super) in_memory: bool,
    /// The step after which a write is acknowledged: its execution (there is no log), the log, or fsync.
    #[arg(long, value_enum, default_value = "async")]
    durability: Acknowledge,
    /// Memory for keys, values, indexes and log rings.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    memory: u64,
    /// Policy of eviction for a memory that is nearly full: noeviction, allkeys-lru, allkeys-lfu, allkeys-random, volatile-lru,
    /// volatile-lfu, volatile-random or volatile-ttl, as in Redis. The hash-map engine has neither lru nor lfu.
    #[arg(long, value_name = "POLICY", default_value = "noeviction", hide_default_value = true)]
    pub(super) maxmemory_policy: EvictionPolicy,
    /// Storage engine: arenas need Linux 6.14, hash maps Linux 6.1. On hash maps, user space executes every command, and there are
    /// no handlers of events. Default: arenas if this kernel has them. Both engines read each other's data directories.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Partitions of the arena engine; one holds at most 4 GiB. Default: as many as the memory takes.
    #[arg(long, value_name = "N")]
    partitions: Option<u32>,
    /// Versions kept per key, 1 to 64 (hash maps: 8); with 1 read-only transactions lock.
    #[arg(long, value_name = "N", default_value_t = 4)]
    versions: u32,
    /// Most connections at once. A low limit on open files reduces it, with a warning.
    #[arg(long, value_name = "N", default_value_t = 4000)]
    max_clients: u32,
    /// Close a connection that has sent nothing for this long.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    idle_timeout: Duration,
    /// Roll back a transaction that is open for this long.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    transaction_timeout: Duration,
    /// Roll back a transaction whose client has been silent for this long, and release its locks.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    transaction_idle_timeout: Duration,
    /// Let the snapshot of a read-only transaction give way to a writer that needs its versions from this age on.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    snapshot_grace: Duration,
    /// The same for the snapshots of checkpoints, dumps and scans.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_time)]
    scan_grace: Duration,
    /// Password that clients must give. Other users of this machine can read the command line: prefer
    /// --password-file or the environment variable BEDPLATE_PASSWORD.
    #[arg(long, conflicts_with = "password_file")]
    password: Option<String>,
    /// File whose first line is the password that clients must give.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// File of users and their rules, in the format of Redis's aclfile. It has the password of the user default as well.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["password", "password_file"])]
    acl_file: Option<PathBuf>,
    /// Longest time that logged data stays without fsync, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    fsync_interval_ms: u64,
    /// Size of a log file.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    wal_segment_bytes: u64,
    /// Size of the ring between the kernel and the log writer, for each CPU and partition.
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = parse_size)]
    wal_ring_bytes: u64,
    /// Time between checkpoints.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time)]
    checkpoint_interval: Duration,
    /// Log written since the last checkpoint after which another is taken; 0 = not for this reason.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    checkpoint_wal_bytes: u64,
    /// Checkpoints kept.
    #[arg(long, value_name = "N", default_value_t = 2)]
    checkpoint_keep: usize,
    /// Object file with procedures (bedplate kv build-procedure), which clients then call by CALL. Can be given several times.
    #[arg(long, value_name = "FILE")]
    pub(super) procedure: Vec<PathBuf>,
    /// Run a handler of those files, or of a library in the data directory, at each event: tc:INTERFACE/ingress,
    /// tc:INTERFACE/egress, xdp:INTERFACE, tracepoint:NAME, or timer:INTERVAL (100ms). Can be given several times.
    #[arg(long, value_name = "HANDLER=EVENT")]
    pub(super) attach: Vec<Attach>,
    /// Let clients load, replace and remove procedures, and attach handlers (PROC). Any client can then run code in the kernel,
    /// which can read all of its memory.
    #[arg(long)]
    allow_procedure_loading: bool,
    /// Start although saved data is damaged in the middle, with everything before the damage.
    #[arg(long)]
    force_recovery: bool,
    /// Execute every command in user space: the same replies, slower; for comparison.
    #[arg(long)]
    no_kernel_path: bool,
    /// Answer clients on this machine inside their own send calls, without TCP. It attaches a
    /// program to the cgroup2 root, which runs in every process that connects to the server's port.
    #[arg(long, conflicts_with = "no_kernel_path")]
    local_fast_path: bool,
    /// Send replies in batches: a higher rate for many busy clients on this machine, a lower one for a single
    /// client. It puts the kernel's workers into the scheduler's batch class, which delays deferred work of the
    /// whole machine, and needs CAP_SYS_NICE.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Never, num_args = 0..=1)]
    #[arg(default_missing_value = "always", conflicts_with = "no_kernel_path")]
    batch_workers: When,
    /// Says whether this program can go on with a server that runs and has its data at this place, and ends. The server asks before an
    /// upgrade.
    #[arg(long, hide = true, value_name = "PLACE")]
    pub(super) check_handover: Option<OsString>,
}

/// A handler and an event.
#[derive(Clone, Debug)]
pub(super) struct Attach {
    pub(super) handler: String,
    pub(super) event: HandlerTarget,
}

impl FromStr for Attach {
    type Err = String;

    fn from_str(text: &str) -> Result<Attach, String> {
        let (handler, event) =
            text.split_once('=').ok_or("write HANDLER=EVENT, for example count=tc:eth0/ingress")?;
        Ok(Attach { handler: handler.into(), event: event.parse()? })
    }
}

/// An address, perhaps with its port.
#[derive(Clone, Copy, Debug)]
struct Bind {
    ip: IpAddr,
    port: Option<u16>,
}

fn parse_bind(text: &str) -> Result<Bind, String> {
    if let Ok(ip) = text.parse() {
        return Ok(Bind { ip, port: None });
    }
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("{text} is not an IP address: write 127.0.0.1, ::1 or 0.0.0.0:6380"))?;
    Ok(Bind { ip: address.ip(), port: Some(address.port()) })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Acknowledge {
    /// Nothing is logged; a checkpoint is taken at the end.
    Off,
    /// A write is acknowledged before it is on disk.
    Async,
    /// A write is acknowledged after fsync.
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Arenas.
    Arena,
    /// Hash maps.
    HashMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// While many clients and all processors are busy.
    #[value(alias = "busy")]
    UnderLoad,
    /// The whole time that the server runs.
    Always,
    /// The server leaves the kernel's workers alone.
    Never,
}

impl Args {
    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.bind.ip, self.bind.port.unwrap_or(self.port))
    }

    fn password(&self) -> anyhow::Result<String> {
        if let Some(password) = &self.password {
            tracing::warn!(
                "other users of this machine can read a --password; prefer --password-file or BEDPLATE_PASSWORD"
            );
            return Ok(password.clone());
        }
        Ok(target::password(self.password_file.as_ref())?.unwrap_or_default())
    }

    /// Where the data is: the data directory, or nothing.
    pub(super) fn place(&self) -> OsString {
        match self.in_memory {
            true => OsString::new(),
            // A path that cannot be made absolute is none that can be opened.
            false => absolute(&self.data_dir).unwrap_or_else(|_| self.data_dir.clone()).into(),
        }
    }

    pub(super) fn engine(&self) -> anyhow::Result<EngineKind> {
        match self.engine {
            Some(Engine::Arena) => Ok(EngineKind::Arena),
            Some(Engine::HashMap) => Ok(EngineKind::HashMap),
            None => {
                let engine = EngineKind::of_this_kernel()?;
                if engine == EngineKind::HashMap {
                    tracing::warn!(
                        "the arena engine needs Linux 6.14 or newer: the database is on hash maps, and user space executes every \
                         command, which is slower"
                    );
                }
                Ok(engine)
            }
        }
    }

    fn database(&self, engine: EngineKind) -> anyhow::Result<Config> {
        Ok(Config {
            engine,
            partitions: self.partitions.unwrap_or(engine.partitions_for(self.memory)),
            memory_bytes: self.memory,
            // Some sessions are for work beside the connections, such as expiry and loading.
            max_sessions: self.max_clients.saturating_add(64).min(65_536),
            versions: self.versions,
            wal_ring_bytes: u32::try_from(self.wal_ring_bytes).context("--wal-ring-bytes is too large")?,
            timeouts: Arc::new(self.timeouts()),
            ..Config::default()
        })
    }

    fn timeouts(&self) -> Timeouts {
        let ms = |time: Duration| AtomicU64::new(time.as_nanos().div_ceil(1_000_000) as u64);
        Timeouts {
            transaction_ms: ms(self.transaction_timeout),
            idle_ms: ms(self.transaction_idle_timeout),
            snapshot_grace_ms: ms(self.snapshot_grace),
            scan_grace_ms: ms(self.scan_grace),
        }
    }

    /// The log, if there is one.
    fn log(&self) -> WalConfig {
        WalConfig {
            durability: if self.durability == Acknowledge::Sync {
                Durability::Sync
            } else {
                Durability::Async
            },
            sync_interval: Duration::from_millis(self.fsync_interval_ms),
            segment_bytes: self.wal_segment_bytes,
            ..WalConfig::default()
        }
    }

    fn store(&self, engine: EngineKind) -> anyhow::Result<StoreConfig> {
        Ok(StoreConfig {
            database: self.database(engine)?,
            wal: (self.durability != Acknowledge::Off).then(|| self.log()),
            checkpoint: CheckpointConfig {
                interval: (!self.checkpoint_interval.is_zero()).then_some(self.checkpoint_interval),
                log_bytes: (self.checkpoint_wal_bytes > 0).then_some(self.checkpoint_wal_bytes),
                keep: self.checkpoint_keep,
                ..CheckpointConfig::default()
            },
            recovery: RecoveryOptions { force: self.force_recovery },
        })
    }

    /// The configuration of the store.
    pub(super) fn configured(&self, engine: EngineKind) -> anyhow::Result<StoreConfig> {
        match self.in_memory {
            true => Ok(StoreConfig { database: self.database(engine)?, ..StoreConfig::default() }),
            false => self.store(engine),
        }
    }

    pub(super) fn server(&self) -> anyhow::Result<ServerConfig> {
        Ok(ServerConfig {
            bind: self.address(),
            max_clients: self.max_clients,
            idle_timeout: (!self.idle_timeout.is_zero()).then_some(self.idle_timeout),
            password: self.password()?,
            eviction: self.maxmemory_policy,
            acl_file: self.acl_file.clone(),
            kernel_path: !self.no_kernel_path,
            local_fast_path: self.local_fast_path,
            batch_workers: match self.batch_workers {
                When::UnderLoad => Batching::UnderLoad,
                When::Always => Batching::Always,
                When::Never => Batching::Never,
            },
            log: Some(self.log()),
            procedure_loading: self.allow_procedure_loading,
            ..ServerConfig::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Args {
        Line::parse_from([&["serve"], words].concat()).args
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let args = parse(&[]);
        assert_eq!(args.address(), "127.0.0.1:6380".parse().unwrap());
        let store = args.store(EngineKind::Arena).unwrap();
        assert_eq!(store.database.memory_bytes, 1 << 30);
        assert_eq!(store.database.partitions, 1);
        assert_eq!(store.wal.unwrap().durability, Durability::Async);
        assert_eq!(store.checkpoint.interval, Some(Duration::from_secs(300)));
        assert_eq!(args.server().unwrap().idle_timeout, None);
        let defaults = format!("{:?}", Timeouts::default());
        assert_eq!(format!("{:?}", store.database.timeouts), defaults);
    }

    #[test]
    fn handlers_are_attached_to_events() {
        let attach = parse(&["--attach", "a=xdp:eth0", "--attach", "b=timer:5s"]).attach;
        let texts: Vec<_> =
            attach.iter().map(|attach| format!("{}={}", attach.handler, attach.event)).collect();
        assert_eq!(texts, ["a=xdp:eth0", "b=timer:5000ms"]);
        for (wrong, reason) in [("a", "write HANDLER=EVENT"), ("a=eth0", "eth0 is not an event")] {
            let error = Line::try_parse_from(["serve", "--attach", wrong]).err().unwrap().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn memory_decides_the_partitions_unless_they_are_given() {
        assert_eq!(parse(&["--memory", "9G"]).database(EngineKind::Arena).unwrap().partitions, 3);
        assert_eq!(parse(&["--memory", "4G"]).database(EngineKind::Arena).unwrap().partitions, 1);
        assert_eq!(
            parse(&["--memory", "1G", "--partitions", "2"]).database(EngineKind::Arena).unwrap().partitions,
            2
        );
        assert_eq!(parse(&["--memory", "9G"]).database(EngineKind::HashMap).unwrap().partitions, 1);
    }

    #[test]
    fn addresses_with_and_without_port() {
        assert_eq!(parse(&["--bind", "0.0.0.0:7"]).address(), "0.0.0.0:7".parse().unwrap());
        assert_eq!(parse(&["--bind", "::1", "--port", "8"]).address(), "[::1]:8".parse().unwrap());
        assert!(Line::try_parse_from(["serve", "--bind", "localhost"]).is_err());
    }

    #[test]
    fn replies_are_not_batched_unless_asked_for() {
        let batching = |words: &[&str]| parse(words).server().unwrap().batch_workers;
        assert_eq!(batching(&[]), Batching::Never);
        assert_eq!(batching(&["--batch-workers", "under-load"]), Batching::UnderLoad);
        assert_eq!(batching(&["--batch-workers"]), Batching::Always);
        assert_eq!(batching(&["--batch-workers", "never", "--port", "1"]), Batching::Never);
        assert_eq!(batching(&["--batch-workers", "--port", "1"]), Batching::Always);
        assert_eq!(batching(&["--no-kernel-path"]), Batching::Never);
    }

    #[test]
    fn without_durability_there_is_no_log() {
        let store = parse(&["--durability", "off"]).store(EngineKind::Arena).unwrap();
        assert!(store.wal.is_none());
    }
}
