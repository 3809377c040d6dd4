//! A Ballista cluster with shared scans: scheduler, executors, and a client that runs one query.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ballista::extension::{SessionConfigExt, SessionContextExt};
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use bedplate_ballista::{Engine, STORE, register, runtime, session_state};
use bedplate_datafusion::{Options, Scans, Service, limits, tables};
use clap::{Parser, Subcommand};
use datafusion::prelude::{SessionConfig, SessionContext};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A Ballista cluster with shared scans. All processes have a folder with the same tables; each sub-folder is one, and so is each
/// file NAME.parquet. The copies on different machines must have equal sizes and modification times (cp -p, rsync -a).
#[derive(Parser)]
#[command(name = "bedplate-ballista", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plan queries and distribute their tasks
    Scheduler {
        /// The folder with the tables
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Where to listen
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50050")]
        listen: SocketAddr,
    },
    /// Run tasks, with Parquet files of the folder read by the scan service
    Executor {
        /// The folder with the tables
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Read by the daemon `bedplate scan serve` at this socket, instead of a service in this process
        #[arg(long, value_name = "PATH", conflicts_with = "plain")]
        socket: Option<PathBuf>,
        /// Read by DataFusion's own reader
        #[arg(long)]
        plain: bool,
        /// The scheduler
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
        scheduler: String,
        /// Where to listen for other executors and clients. The next port is for the scheduler
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
        listen: SocketAddr,
        /// The name by which others reach this executor: that of its address by default
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// Tasks at a time: as many as processors by default
        #[arg(long, value_name = "N")]
        tasks: Option<usize>,
        /// Files with fewer bytes are read by DataFusion's own reader
        #[arg(long, value_name = "BYTES", default_value_t = limits::MIN_FILE_BYTES)]
        min_file_bytes: u64,
        /// Where results between stages are kept: a temporary folder by default
        #[arg(long, value_name = "DIR")]
        work: Option<PathBuf>,
        /// Print what the scans did, as a line of JSON, whenever that has changed
        #[arg(long)]
        statistics: bool,
    },
    /// Run one query and print its rows as JSON
    Query {
        /// The folder with the tables, for their schemas
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// The scheduler
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
        scheduler: String,
        /// Partitions of each scan and exchange
        #[arg(long, value_name = "N", default_value_t = 4)]
        partitions: usize,
        /// A file with one SQL query
        #[arg(value_name = "FILE.sql")]
        query: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments.command))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, whatever the error has.
            let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("bedplate-ballista: {text}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Scheduler { data, listen } => scheduler(data, listen).await,
        Command::Executor {
            data,
            socket,
            plain,
            scheduler,
            listen,
            host,
            tasks,
            min_file_bytes,
            work,
            statistics,
        } => {
            let scans = match plain {
                true => None,
                false => Some(scans(&data, socket.as_deref(), min_file_bytes)?),
            };
            if let (Some(scans), true) = (&scans, statistics) {
                tokio::spawn(print_statistics(scans.clone()));
            }
            executor(data, scans, &scheduler, listen, host, tasks, work).await
        }
        Command::Query { data, scheduler, partitions, query } => {
            run_query(&data, &scheduler, partitions, &query).await
        }
    }
}

async fn scheduler(data: PathBuf, listen: SocketAddr) -> Result<(), Error> {
    // A wrong folder is an error now, not with the first query.
    runtime(&data)?;
    let config = SchedulerConfig {
        bind_host: listen.ip().to_string(),
        bind_port: listen.port(),
        external_host: listen.ip().to_string(),
        override_session_builder: Some(Arc::new(move |config| session_state(config, &data))),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await?;
    Ok(start_server(cluster, listen, Arc::new(config)).await?)
}

fn scans(data: &Path, socket: Option<&Path>, min_file_bytes: u64) -> Result<Scans, Error> {
    let service = match socket {
        Some(socket) => Service::connect(socket)?,
        None => Service::start()?,
    };
    let options = Options { min_file_bytes, ..Options::default() };
    Ok(Scans::with_options(service, options, [(STORE, data)])?)
}

async fn executor(
    data: PathBuf,
    scans: Option<Scans>,
    scheduler: &str,
    listen: SocketAddr,
    host: Option<String>,
    tasks: Option<usize>,
    work: Option<PathBuf>,
) -> Result<(), Error> {
    let (scheduler_host, scheduler_port) = scheduler
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)))
        .ok_or_else(|| format!("{scheduler} is not HOST:PORT"))?;
    let grpc_port = listen.port().checked_add(1).ok_or("the port after that of --listen is needed, too")?;
    runtime(&data)?;
    let config = ExecutorProcessConfig {
        bind_host: listen.ip().to_string(),
        external_host: Some(host.unwrap_or_else(|| listen.ip().to_string())),
        port: listen.port(),
        grpc_port,
        scheduler_host,
        scheduler_port,
        scheduler_connect_timeout_seconds: 30,
        vcores: tasks.unwrap_or(0),
        work_dir: work.map(|work| work.to_string_lossy().into_owned()),
        override_runtime_producer: Some(Arc::new(move |_: &SessionConfig| runtime(&data))),
        override_execution_engine: scans.map(|scans| Arc::new(Engine::new(scans)) as _),
        ..ExecutorProcessConfig::default()
    };
    Ok(start_executor_process(Arc::new(config)).await?)
}

/// Prints what the scans did, each second in which that has changed.
async fn print_statistics(scans: Scans) {
    let mut before = scans.statistics();
    loop {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let now = scans.statistics();
        if now != before {
            let line = serde_json::json!({
                "served_bytes": now.served_bytes,
                "served_streams": now.served_streams,
                "default_streams": now.default_streams,
                "fallbacks": now.fallbacks,
            });
            println!("{line}");
            before = now;
        }
    }
}

async fn run_query(data: &Path, scheduler: &str, partitions: usize, query: &Path) -> Result<(), Error> {
    let text = std::fs::read_to_string(query).map_err(|error| format!("{}: {error}", query.display()))?;
    let config = SessionConfig::new_with_ballista().with_target_partitions(partitions);
    let state = session_state(config, data)?;
    let context = SessionContext::remote_with_state(&format!("df://{scheduler}"), state).await?;
    register(&context, data).await?;
    let batches = context.sql(&text).await?.collect().await?;
    println!("{}", serde_json::json!({ "rows": tables::rows(&batches)? }));
    Ok(())
}
