//! `bedplate bench NAME`: runs one benchmark, shows its progress, prints its report.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bedplate_bench::{Mode, Options, benchmarks, names};
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::{hinted, report_as};
use crate::interrupts::{INTERRUPTED, Interrupts};

/// Arguments of `bedplate bench`.
#[derive(clap::Args)]
pub struct Args {
    /// The benchmark; without a name, all benchmarks are listed.
    name: Option<String>,
    /// A subset of the cells, within two minutes on two cores (the default).
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every cell of the paper's experiment.
    #[arg(long)]
    full: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// The Redis server to compare with.
    #[arg(long, value_name = "FILE", default_value = "redis-server")]
    redis: PathBuf,
    /// The directory for the files that benchmarks write, and remove afterwards: put it on a disk.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The Valkey server whose I/O threads snapshot-redis measures.
    #[arg(long, value_name = "FILE", default_value = "valkey-server")]
    valkey: PathBuf,
    /// The number of threads that write in htap and snapshot-fault, instead of their own numbers: 1 to 64.
    #[arg(long, value_name = "THREADS")]
    writers: Option<usize>,
    /// The scale factor of TPC-H in scan-postgres and scan-tpch, 0.01 to 100, instead of their own.
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// The database that scan-tpch measures.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(bedplate_bench::engines()))]
    engine: Option<String>,
    /// The program that scan-tpch runs for datafusion, if it is not where `make datafusion-build` puts it.
    #[arg(long, value_name = "FILE")]
    datafusion: Option<PathBuf>,
    /// The kernel's read-ahead on the device of the files of scan-tpch and scan-programs (root only), instead of its setting,
    /// which is 128 on most machines.
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    read_ahead: Option<u64>,
    /// Be the `floor` of kv-net on a port of the loopback address.
    #[arg(long, value_name = "PORT", hide = true, exclusive = true)]
    floor: Option<u16>,
}

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(port) = args.floor {
        let never = bedplate_bench::net::floor::serve(port).context("serving constant replies")?;
        match never {}
    }
    let mut out = io::stdout().lock();
    let Some(name) = &args.name else {
        for bench in benchmarks() {
            writeln!(out, "{:<16} {}", bench.name, bench.about)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    if !names().contains(&name.as_str()) {
        return Err(hinted(
            format!("there is no benchmark {name}"),
            format!("choose one of: {}", names().join(", ")),
        ));
    }
    let mut options = Options::new(if args.full { Mode::Full } else { Mode::Quick });
    options.redis.clone_from(&args.redis);
    options.valkey.clone_from(&args.valkey);
    options.writers = args.writers;
    options.scale = args.scale;
    options.engine.clone_from(&args.engine);
    options.datafusion.clone_from(&args.datafusion);
    options.read_ahead = args.read_ahead;
    options.bedplate = Some(std::env::current_exe().context("finding this executable")?);
    if let Some(directory) = &args.directory {
        options.directory.clone_from(directory);
    }
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{pos}/{len} [{elapsed_precise}] {wide_msg}");
    bar.set_style(style.context("progress bar")?);
    let interrupts = Interrupts::catch()?;
    let report = interrupts.run(|| {
        bedplate_bench::run(name, &options, &mut |step| {
            interrupts.check();
            bar.set_length(step.total as u64);
            bar.set_position(step.done as u64);
            bar.set_message(step.label.to_owned());
        })
    });
    bar.finish_and_clear();
    let Some(report) = report else {
        return Ok(report_as(&anyhow::anyhow!("the benchmark was interrupted"), INTERRUPTED));
    };
    let report = report?;
    if args.json {
        writeln!(out, "{}", report.to_json())?
    } else {
        writeln!(out, "{}", report.to_table(width()))?
    }
    Ok(ExitCode::SUCCESS)
}

/// The terminal's width; `None` if the output goes elsewhere, where the width of tables is not limited.
fn width() -> Option<u16> {
    let out = io::stdout();
    if !io::IsTerminal::is_terminal(&out) {
        return None;
    }
    rustix::termios::tcgetwinsize(&out).ok().map(|size| size.ws_col).filter(|columns| *columns > 0)
}
