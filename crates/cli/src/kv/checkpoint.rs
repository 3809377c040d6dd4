//! `bedplate kv checkpoint`: a checkpoint with everything committed before the command.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::progress;
use super::target::Target;

/// Arguments of `bedplate kv checkpoint`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
}

/// Asks for the checkpoint and waits.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut connection = args.target.connect()?;
    let bar = progress::bar("checkpoint", 0);
    bar.enable_steady_tick(Duration::from_millis(100));
    let reply = redis::cmd("BEDPLATE").arg("CHECKPOINT").query::<String>(&mut connection);
    bar.finish_and_clear();
    let text = reply.map_err(|e| args.target.failed("checkpoint", e))?;
    writeln!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}
