//! `bedplate vm fetch`.

use std::process::ExitCode;

use bedplate_vm::{Kernel, Series};

#[derive(clap::Args)]
pub struct Args {
    /// Fetch the newest kernels even if the cache has some.
    #[arg(long)]
    newest: bool,
}

/// Fills the cache of kernels.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for series in Series::ALL {
        let kernel = if args.newest { Kernel::fetch(series)? } else { Kernel::get(series)? };
        println!("Linux {}: {}", kernel.version(), kernel.image().display());
    }
    Ok(ExitCode::SUCCESS)
}
