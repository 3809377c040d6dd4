//! `bedplate store compact`: a store in as few pages as possible.

use std::io::{self, Write};
use std::process::ExitCode;

use rustix::fs::statvfs;

use super::follow;
use super::location::Location;
use crate::units::size;

/// Arguments of `bedplate store compact`.
///
/// The pages are written to a new file, which then takes the place of the old one. If that fails or is interrupted, the old
/// store stays as it is.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    location: Location,
    /// Only print how much space it needs and how much it would save.
    #[arg(long)]
    dry_run: bool,
}

/// Compacts.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let free = statvfs(&args.location.directory).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    let (bar, mut update) = follow("compact", None);
    let mut is_enough = true;
    let mut planned = |plan: &bedplate_btree::store::Compaction| {
        let is_known = free.map_or_else(|_| "unknown".to_owned(), size);
        bar.suspend(|| {
            eprintln!(
                "at most {} instead of {}; so much space is needed meanwhile, and {is_known} is free",
                size(plan.bytes_after),
                size(plan.bytes_before),
            );
        });
        is_enough = free.map_or(true, |free| free >= plan.bytes_after);
        is_enough && !args.dry_run
    };
    let done = args.location.builder().compact(&mut planned, &mut update);
    bar.finish_and_clear();
    match done? {
        Some(done) => {
            writeln!(io::stdout(), "{} instead of {}", size(done.bytes_after), size(done.bytes_before))?
        }
        None if args.dry_run => {}
        None => anyhow::bail!("there is not enough space for the new pages: the store is as it was"),
    }
    Ok(ExitCode::SUCCESS)
}
