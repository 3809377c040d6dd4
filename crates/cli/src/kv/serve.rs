//! `bedplate kv serve`: opens the data directory, recovers it, and serves it until a signal or SHUTDOWN.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{PathBuf, absolute};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bedplate_kerneldb::checkpoint::CheckpointConfig;
use bedplate_kerneldb::limits::PARTITION_BYTES_MIN;
use bedplate_kerneldb::recovery::{RecoveryOptions, RecoveryPhase, RecoveryProgress};
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{
    Config, Durability, EngineKind, HandlerTarget, Image, Store, StoreConfig, Timeouts, read_library,
};
use bedplate_kerneldb_redis::server::{Batching, Handover, Preparation, Server, ServerConfig, UpgradeCheck};
use clap::ValueEnum;

use super::upgrade::{self, Inherited, Program, UpgradeSignal};
use super::{progress, target};
use crate::allocator::give_large_blocks_back;
use crate::descriptors;
use crate::failure::hinted;
use crate::signals::Stops;
use crate::units::{count, parse_size, parse_time};

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
    data_dir: PathBuf,
    /// Keep nothing on disk: no data directory, no log, no checkpoints.
    #[arg(long)]
    in_memory: bool,
    /// The step after which a write is acknowledged: its execution (there is no log), the log, or fsync.
    #[arg(long, value_enum, default_value = "async")]
    durability: Acknowledge,
    /// Memory for keys, values, indexes and log rings.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    memory: u64,
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
    procedure: Vec<PathBuf>,
    /// Run a handler of those files, or of a library in the data directory, at each event: tc:INTERFACE/ingress,
    /// tc:INTERFACE/egress, xdp:INTERFACE, tracepoint:NAME, or timer:INTERVAL (100ms). Can be given several times.
    #[arg(long, value_name = "HANDLER=EVENT")]
    attach: Vec<Attach>,
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
    check_handover: Option<OsString>,
}

/// A handler and an event.
#[derive(Clone, Debug)]
struct Attach {
    handler: String,
    event: HandlerTarget,
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
    fn place(&self) -> OsString {
        match self.in_memory {
            true => OsString::new(),
            // A path that cannot be made absolute is none that can be opened.
            false => absolute(&self.data_dir).unwrap_or_else(|_| self.data_dir.clone()).into(),
        }
    }

    fn engine(&self) -> anyhow::Result<EngineKind> {
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

    fn server(&self) -> anyhow::Result<ServerConfig> {
        Ok(ServerConfig {
            bind: self.address(),
            max_clients: self.max_clients,
            idle_timeout: (!self.idle_timeout.is_zero()).then_some(self.idle_timeout),
            password: self.password()?,
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

/// Serves until the end, or until another program goes on.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(place) = &args.check_handover {
        try_out(args, place)?;
        writeln!(io::stdout(), "{}", upgrade::formats())?;
        return Ok(ExitCode::SUCCESS);
    }
    let program = Program::of_this_process()?;
    let signal = UpgradeSignal::catch()?;
    let inherited = Inherited::take()?;
    // Each connection takes a descriptor.
    descriptors::raise();
    give_large_blocks_back();
    let (checked, place) = (program.clone(), args.place());
    let check = UpgradeCheck::new(move || checked.check(&place));
    let config = ServerConfig { upgrade: Some(check), ..args.server()? };
    let mut next = Some(prepare(args, &config, inherited)?);
    while let Some((server, store, stops)) = next.take() {
        let stopping = Arc::new(AtomicBool::new(false));
        let Some((mut handover, store)) = serve(server, store, &stops, &stopping, &signal)? else {
            stops.end();
            break;
        };
        let error = program.replace(&handover, &store, &stopping);
        stops.end();
        if stopping.load(Ordering::Relaxed) {
            close(&store)?;
            break;
        }
        tracing::error!("no upgrade: {error:#}");
        handover.stays(&format!("{error:#}"))?;
        let mut server = Server::resume(config.clone(), handover)?;
        // The store has this configuration already, and the server has to know what clients have changed.
        server.store_config(configured(args, store.config().database.engine)?);
        next = Some((server, store, Stops::catch()?));
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Checks the arguments, and runs a small server for a moment: this process may lack a capability, and the kernel may refuse this
/// program's eBPF programs. The data is at `place`.
fn try_out(args: &Args, place: &OsStr) -> anyhow::Result<()> {
    if args.place() != place {
        bail!("the data is in {}, and the options say {}", place.display(), args.place().display());
    }
    let config = args.server()?;
    config.check()?;
    let store = configured(args, args.engine()?)?;
    let small = Config {
        memory_bytes: PARTITION_BYTES_MIN,
        partitions: 1,
        wal_ring_bytes: 0,
        max_sessions: 64,
        ..store.database
    };
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let trial = ServerConfig { bind, max_clients: 1, batch_workers: Batching::Never, ..config };
    let store = Store::in_memory(small)?;
    load_libraries(args, &store)?;
    Server::start(Arc::new(store), trial)?.shutdown()?;
    Ok(())
}

/// Opens the store, and takes the address or what the program before has left.
fn prepare(
    args: &Args,
    config: &ServerConfig,
    inherited: Option<Inherited>,
) -> anyhow::Result<(Preparation, Arc<Store>, Stops)> {
    // The check comes before recovery, which may take long.
    config.check().map_err(|error| match config.batch_workers {
        Batching::Never => error.into(),
        _ => hinted(error.to_string(), "grant CAP_SYS_NICE, or leave --batch-workers out"),
    })?;
    if config.password.is_empty() && !config.bind.ip().is_loopback() {
        tracing::warn!(bind = %config.bind, "everybody who can reach this address can read and write everything: set a password");
    }
    let stops = Stops::catch()?;
    let (config, address) = (config.clone(), config.bind);
    let in_use = |error| in_use(error, address);
    let (mut server, image) = match inherited {
        None => (Server::prepare(config).map_err(in_use)?, None),
        Some(Inherited { handover, image }) => {
            tracing::info!(
                connections = handover.connections(),
                "this program goes on with the connections of the one before"
            );
            (Server::resume(config, handover).map_err(in_use)?, image)
        }
    };
    let store = open(args, &mut server, image)?;
    load_libraries(args, &store)?;
    attach_handlers(args, &store)?;
    Ok((server, Arc::new(store), stops))
}

/// Serves until a signal, SHUTDOWN, or an upgrade. Returns what the next program needs, and the store, which is complete.
fn serve(
    server: Preparation,
    store: Arc<Store>,
    stops: &Stops,
    stopping: &Arc<AtomicBool>,
    signal: &UpgradeSignal,
) -> anyhow::Result<Option<(Handover, Arc<Store>)>> {
    let resumed = server.is_resumed();
    let address = server.address();
    let server = server.start(store).map_err(|error| in_use(error, address))?;
    let store = server.store();
    let stopper = server.stopper();
    let stopping = stopping.clone();
    stops.started(move || {
        stopping.store(true, Ordering::Relaxed);
        stopper.stop();
    });
    signal.serves(Some(server.upgrader()));
    // Programs that start this one wait for this line. It also has the port, which the option may leave open as 0.
    let said = writeln!(io::stdout(), "ready on {}", server.local_addr()).and_then(|()| io::stdout().flush());
    // The program that has started the first one may listen no more.
    if !resumed {
        said?;
    }

    let served = server.wait();
    signal.serves(None);
    if let (Ok(Some(_)), Some(store)) = (&served, store.get()) {
        return Ok(served?.map(|handover| (handover, store)));
    }
    // If there is none, the server could not open it again after a change of the database's options.
    let closed = store.get().map_or(Ok(()), |store| close(&store));
    served?;
    closed?;
    Ok(None)
}

/// Closes the store at the end. Without a log, only a last checkpoint keeps the data.
fn close(store: &Store) -> bedplate_kerneldb::Result<()> {
    store.close(store.durability() == Durability::Off && store.data_dir().is_some())
}

/// Loads the libraries that the command line names. Each library replaces the one of the same name in
/// the data directory, as long as this process runs.
fn load_libraries(args: &Args, store: &Store) -> anyhow::Result<()> {
    for file in &args.procedure {
        let loaded = read_library(file)
            .and_then(|(library, elf)| store.database().load_library(&library, &elf, true))
            .with_context(|| format!("loading the procedures of {}", file.display()))?;
        tracing::info!(file = %file.display(), procedures = loaded.join(" "), "loaded");
    }
    Ok(())
}

/// Attaches the handlers that the command line names.
fn attach_handlers(args: &Args, store: &Store) -> anyhow::Result<()> {
    for Attach { handler, event } in &args.attach {
        let attached = store.database().attach_handler(handler, event);
        attached.with_context(|| format!("attaching {handler} to {event}"))?;
        tracing::info!(handler, %event, "attached");
    }
    Ok(())
}

/// Adds advice to the error about an address that is in use.
fn in_use(error: bedplate_kerneldb::Error, address: SocketAddr) -> anyhow::Error {
    match &error {
        bedplate_kerneldb::Error::Io { source, .. } if source.kind() == io::ErrorKind::AddrInUse => hinted(
            format!("{address} is in use by another process"),
            "choose another port with --port, or stop what listens there",
        ),
        _ => error.into(),
    }
}

/// The configuration of the store, as the command line has it.
fn configured(args: &Args, engine: EngineKind) -> anyhow::Result<StoreConfig> {
    match args.in_memory {
        true => Ok(StoreConfig { database: args.database(engine)?, ..StoreConfig::default() }),
        false => args.store(engine),
    }
}

/// Opens the store. The server's programs are loaded meanwhile.
fn open(args: &Args, server: &mut Preparation, image: Option<Image>) -> anyhow::Result<Store> {
    let engine = args.engine()?;
    server.check_engine(engine).map_err(|error| hinted(error.to_string(), "leave --local-fast-path out"))?;
    let config = server.store_config(configured(args, engine)?);
    if args.in_memory {
        return match image {
            Some(image) => {
                Store::open_image(config, &image, &mut |db| server.load(db)).context("opening the data")
            }
            None => Ok(Store::in_memory(config.database)?),
        };
    }
    let bar = progress::bar("recovery", 1);
    let mut show = |progress: RecoveryProgress| {
        bar.set_prefix(match progress.phase {
            RecoveryPhase::Checkpoint => "checkpoint",
            RecoveryPhase::Log => "log",
        });
        bar.set_length(progress.total_bytes.max(1));
        bar.set_position(progress.done_bytes);
        bar.set_message(count(progress.applied));
    };
    let opened = Store::open_with(config, &args.data_dir, &mut show, &mut |db| server.load(db));
    bar.finish_and_clear();
    let (store, report) = opened.with_context(|| format!("opening {}", args.data_dir.display()))?;
    for skipped in &report.checkpoints_skipped {
        tracing::warn!("a damaged checkpoint was skipped: {skipped}");
    }
    if let Some(damage) = &report.damage {
        tracing::error!("saved data was given up: {damage}");
    }
    if report.torn_bytes > 0 {
        tracing::info!(
            bytes = report.torn_bytes,
            "the log's end was cut off: the write that was the last one is not complete, or is damaged"
        );
    }
    Ok(store)
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
