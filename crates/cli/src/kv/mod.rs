//! `bedplate kv`: the commands around kerneldb, one file each.

mod checkpoint;
mod commands_file;
mod dump;
mod load;
mod progress;
mod restore;
mod stats;
mod target;
mod verify;

use std::process::ExitCode;

/// Commands of `bedplate kv`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show what a running server does, line by line.
    Stats(stats::Args),
    /// Let a running server take a checkpoint, and wait for it.
    Checkpoint(checkpoint::Args),
    /// Make a new data directory from a checkpoint or an image.
    Restore(restore::Args),
    /// Check every invariant of a running server, a data directory, a checkpoint or a dump.
    Verify(verify::Args),
    /// Write all keys of a running server to a file of SET commands.
    Dump(dump::Args),
    /// SET every key of a dump in a running server.
    Load(load::Args),
}

/// Runs a command.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Stats(args) => stats::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Load(args) => load::run(args),
    }
}
