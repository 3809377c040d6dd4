//! `bedplate snapshot run`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::{preload, units};

const LIBRARY: &str = "libbedplate_snapshot_preload.so";

#[derive(clap::Args)]
pub struct Args {
    /// Append what happened to a file, a line when the program ends.
    #[arg(long, value_name = "FILE")]
    statistics: Option<PathBuf>,
    /// Do not run the program where userfaultfd is not available; by default it runs as usual, after a word about it.
    #[arg(long)]
    required: bool,
    /// Do not have the kernel back the program's memory with huge pages: it takes less memory where the program uses it
    /// sparsely, and snapshots hold the program up for longer.
    #[arg(long)]
    small_pages: bool,
    /// Memory that the program maps in pieces smaller than this is copied by fork as usual.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = units::parse_size)]
    minimum: u64,
    #[command(flatten)]
    program: preload::Args,
}

/// Becomes the program; returns only if that fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut environment = vec![("BEDPLATE_SNAPSHOT_MINIMUM", args.minimum.to_string().into())];
    if let Some(file) = &args.statistics {
        environment.push(("BEDPLATE_SNAPSHOT_STATISTICS", std::path::absolute(file)?.into()));
    }
    if args.required {
        environment.push(("BEDPLATE_SNAPSHOT_REQUIRED", "1".into()));
    }
    if args.small_pages {
        environment.push(("BEDPLATE_SNAPSHOT_HUGE_PAGES", "0".into()));
    }
    args.program.run(LIBRARY, &environment)
}
