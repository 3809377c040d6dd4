//! Runs one query on a folder of Parquet tables and prints its rows and what they cost, as one JSON object.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use bedplate_datafusion::measure::{MeasureRule, Meter};
use bedplate_datafusion::{Options, Scans, Service, limits, tables};
use clap::Parser;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use rustix::time::{ClockId, clock_gettime};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Runs one query on a folder of Parquet tables. Prints its rows, and what they cost, as one JSON object.
#[derive(Parser)]
#[command(name = "bedplate-datafusion", version)]
struct Arguments {
    /// The folder. Each sub-folder is a table, and so is each file NAME.parquet
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Read by DataFusion's own reader
    #[arg(long, conflicts_with = "socket")]
    plain: bool,
    /// Read by the daemon `bedplate scan serve` at this socket, instead of a service in this process
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Partitions of each scan, which are the threads that work on the query: as many as processors by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    partitions: Option<u64>,
    /// Files with fewer bytes are read by DataFusion's own reader
    #[arg(long, value_name = "BYTES", default_value_t = limits::MIN_FILE_BYTES, conflicts_with = "plain")]
    min_file_bytes: u64,
    /// A file with one SQL query
    #[arg(long, value_name = "FILE.sql")]
    query: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(&arguments))
    };
    match run() {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // One line, whatever the error has.
            let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("bedplate-datafusion: {text}");
            ExitCode::FAILURE
        }
    }
}

fn scans(arguments: &Arguments) -> Result<Option<Scans>, Error> {
    if arguments.plain {
        return Ok(None);
    }
    let service = match &arguments.socket {
        Some(socket) => Service::connect(socket)?,
        None => Service::start()?,
    };
    let options = Options { min_file_bytes: arguments.min_file_bytes, ..Options::default() };
    Ok(Some(Scans::with_options(service, options, [])?))
}

async fn run(arguments: &Arguments) -> Result<serde_json::Value, Error> {
    let query = read(&arguments.query)?;
    let mut config = SessionConfig::new();
    if let Some(partitions) = arguments.partitions {
        config = config.with_target_partitions(partitions as usize);
    }
    let context = SessionContext::new_with_config(config);
    let scans = scans(arguments)?;
    if let Some(scans) = &scans {
        scans.install(&context);
    }
    let meter = Arc::new(Meter::default());
    let measure = Arc::new(MeasureRule::new(meter.clone()));
    let state = SessionStateBuilder::new_from_existing(context.state()).with_physical_optimizer_rule(measure);
    let context = SessionContext::new_with_state(state.build());
    tables::register(&context, &arguments.data).await?;

    let (begin, cpu_before) = (Instant::now(), process_cpu_ns());
    let batches = context.sql(&query).await?.collect().await?;
    let (wall_ns, cpu_ns) = (begin.elapsed().as_nanos() as u64, process_cpu_ns() - cpu_before);
    let served_bytes = scans.map_or(0, |scans| scans.statistics().served_bytes);
    Ok(serde_json::json!({
        "rows": tables::rows(&batches)?,
        "wall_ns": wall_ns,
        "cpu_ns": cpu_ns,
        "read_ns": meter.waited_ns(),
        "served_bytes": served_bytes,
        "plain_bytes": meter.bytes().saturating_sub(served_bytes),
    }))
}

fn read(path: &Path) -> Result<String, Error> {
    Ok(std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// The processor time that the process has used, in user and system mode.
fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
