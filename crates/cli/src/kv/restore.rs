//! `bedplate kv restore`: a new data directory from a checkpoint file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bedplate_kerneldb::store;

use super::progress;
use crate::units::{count, size};

/// Arguments of `bedplate kv restore`.
#[derive(clap::Args)]
pub struct Args {
    /// The checkpoint file.
    checkpoint: PathBuf,
    /// The data directory to make; it must not hold a database yet.
    #[arg(long, value_name = "DIR", alias = "data")]
    data_dir: PathBuf,
}

/// Restores; the directory can then be served.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (bar, mut update) = progress::follow("restore");
    let info = store::restore(&args.checkpoint, &args.data_dir, &mut update);
    bar.finish_and_clear();
    let info = info?;
    writeln!(
        io::stdout(),
        "restored {} keys ({}) up to commit {} in {:.1?}; serve them with: bedplate kv serve --data-dir {}",
        count(info.entries),
        size(info.bytes),
        info.ts,
        info.took,
        args.data_dir.display(),
    )?;
    Ok(ExitCode::SUCCESS)
}
