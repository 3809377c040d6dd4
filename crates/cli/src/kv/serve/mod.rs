//! `bedplate kv serve`: opens the data directory, recovers it, and serves it until a signal, SHUTDOWN, or an upgrade.

mod options;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use bedplate_kerneldb::limits::PARTITION_BYTES_MIN;
use bedplate_kerneldb::recovery::RecoveryProgress;
use bedplate_kerneldb::{Config, Durability, Image, Store, read_library};
use bedplate_kerneldb_redis::server::{Batching, Handover, Preparation, Server, ServerConfig, UpgradeCheck};

use super::progress;
use super::upgrade::{self, Inherited, Program, UpgradeSignal};
use crate::allocator::give_large_blocks_back;
use crate::descriptors;
use crate::failure::hinted;
use crate::signals::Stops;
pub use options::Args;
use options::Attach;

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
        server.store_config(args.configured(store.config().database.engine)?);
        let stops = Stops::catch()?;
        stops.serves();
        next = Some((server, store, stops));
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
    let store = args.configured(args.engine()?)?;
    let small = Config {
        memory_bytes: PARTITION_BYTES_MIN,
        partitions: 1,
        wal_ring_bytes: 0,
        max_sessions: 64,
        ..store.database
    };
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let trial =
        ServerConfig { bind, max_clients: 1, batch_workers: Batching::Never, acl_file: None, ..config };
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
    // Handlers change the data from now on.
    stops.serves();
    server.resume_handlers(store.database());
    // An error must not end a program that goes on with connections and data.
    let goes_on = server.is_resumed();
    attach_handlers(args, &store, goes_on)?;
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
    stops.serves();
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

/// Attaches the handlers that the command line names, unless the program before has left them attached. With `goes_on`, errors are logged.
fn attach_handlers(args: &Args, store: &Store, goes_on: bool) -> anyhow::Result<()> {
    let handlers = store.database().handlers()?;
    for Attach { handler, event } in &args.attach {
        if handlers.iter().any(|info| info.name == *handler && info.targets.contains(event)) {
            continue;
        }
        match store.database().attach_handler(handler, event) {
            Ok(()) => tracing::info!(handler, %event, "attached"),
            Err(error) if goes_on => tracing::error!(handler, %event, %error, "not attached"),
            Err(error) => return Err(error).with_context(|| format!("attaching {handler} to {event}")),
        }
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

/// Opens the store. The server's programs are loaded meanwhile.
fn open(args: &Args, server: &mut Preparation, image: Option<Image>) -> anyhow::Result<Store> {
    let engine = args.engine()?;
    server.check_engine(engine).map_err(|error| {
        let hint = match engine.evicts(args.maxmemory_policy) {
            true => "leave --local-fast-path out",
            false => "choose a --maxmemory-policy at random, volatile-ttl, or noeviction",
        };
        hinted(error.to_string(), hint)
    })?;
    let config = server.store_config(args.configured(engine)?);
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
        progress::recovered(&bar, "checkpoint", progress);
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
