//! `bedplate ring0 run`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::preload;

const LIBRARY: &str = "libbedplate_ring0_preload.so";

#[derive(clap::Args)]
pub struct Args {
    /// Append statistics of ring 0 to a file, a line for every process that ends.
    #[arg(long, value_name = "FILE")]
    statistics: Option<PathBuf>,
    /// Do not run the program if there is no ring 0; by default it runs natively, after a warning.
    #[arg(long)]
    required: bool,
    #[command(flatten)]
    program: preload::Args,
}

/// Becomes the program; returns only if that fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut environment = Vec::new();
    if let Some(file) = &args.statistics {
        environment.push(("BEDPLATE_RING0_STATISTICS", std::path::absolute(file)?.into()));
    }
    if args.required {
        environment.push(("BEDPLATE_RING0_REQUIRED", "1".into()));
    }
    args.program.run(LIBRARY, &[], &environment)
}
