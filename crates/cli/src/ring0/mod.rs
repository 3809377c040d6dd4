//! `bedplate ring0`.

mod run;

use std::process::ExitCode;

/// Commands of `bedplate ring0`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a program, unmodified, in ring 0.
    Run(run::Args),
}

/// Runs a command.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args),
    }
}
