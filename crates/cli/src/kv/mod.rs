//! `bedplate kv`: the commands around kerneldb, one file each.

mod build_procedure;
mod checkpoint;
mod commands_file;
mod config_file;
mod dump;
mod load;
mod new_procedure;
pub mod progress;
mod restore;
mod serve;
mod stats;
mod target;
mod upgrade;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

/// Commands of `bedplate kv`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Serve a data directory to Redis clients, answered in the kernel.
    Serve(Box<serve::Args>),
    /// Show the activity of a running server, line by line.
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
    /// Make a folder with the source, the Makefile and the test of a new procedure.
    NewProcedure(new_procedure::Args),
    /// Compile procedures, in C or in the procedure language, into a library that servers load.
    BuildProcedure(build_procedure::Args),
}

/// Runs a command.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Load(args) => load::run(args),
        Command::NewProcedure(args) => new_procedure::run(args),
        Command::BuildProcedure(args) => build_procedure::run(args),
    }
}

/// The command line again, with the options of the file that `kv serve --config` names; `None` if it names
/// none.
pub fn with_config_file(command: &Command) -> anyhow::Result<Option<Vec<OsString>>> {
    let Command::Serve(args) = command else { return Ok(None) };
    let Some(path) = &args.config else { return Ok(None) };
    Ok(Some(config_file::merge(std::env::args_os().collect(), config_file::read(path)?)))
}
