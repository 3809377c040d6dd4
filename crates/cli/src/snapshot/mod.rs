//! `bedplate snapshot`.

mod run;
mod stats;

use std::process::ExitCode;

/// Commands of `bedplate snapshot`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a program that forks to save its memory, unmodified, with instant snapshots: redis-server, say.
    Run(run::Args),
    /// Show statistics about the snapshots of running programs: number, duration, copied memory.
    Stats(stats::Args),
}

/// Runs a command.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Stats(args) => stats::run(args),
    }
}
