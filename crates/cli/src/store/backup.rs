//! `bedplate store backup`: a copy of a store.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::follow;
use super::location::Location;
use crate::units::size;

/// Arguments of `bedplate store backup`.
///
/// The store must not be open in another process. A program that has it open makes the same copy by `Store::backup`, while
/// transactions continue.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    location: Location,
    /// The directory of the copy. It does not exist or is empty, and has the copy when that is complete.
    target: PathBuf,
}

/// Copies.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = args.location.open()?;
    let (bar, mut update) = follow("backup", None);
    let backup = store.backup(&args.target, &mut update);
    bar.finish_and_clear();
    let backup = backup?;
    store.close()?;
    writeln!(io::stdout(), "{} in {}", size(backup.bytes), args.target.display())?;
    Ok(ExitCode::SUCCESS)
}
