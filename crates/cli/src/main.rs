//! The `bedplate` command.
//!
//! There is one file per command. Only this crate prints, parses arguments and exits. Errors end as one
//! line on the standard error, with a hint if there is one. Logs go to the standard error too;
//! `BEDPLATE_LOG` selects them (for example `debug`).

mod allocator;
mod bench;
mod descriptors;
mod doctor;
mod failure;
mod interrupts;
mod kv;
mod log;
mod preload;
mod ring0;
mod scan;
mod signals;
mod snapshot;
mod store;
mod units;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Database components that use the kernel as their runtime.
#[derive(Parser)]
#[command(name = "bedplate", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Report what this kernel, these privileges and this hardware allow, with advice about each no.
    Doctor(doctor::Args),
    /// The key-value database: run its server, look at it, save and restore it.
    #[command(subcommand)]
    Kv(kv::Command),
    /// The transactional store: its records, backups, verification, dumps, compaction.
    #[command(subcommand)]
    Store(store::Command),
    /// Run programs in ring 0.
    #[command(subcommand)]
    Ring0(ring0::Command),
    /// Run programs with instant memory snapshots.
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    /// Read big files at the speed of their device: checksum, lines, bytes.
    Scan(scan::Args),
    /// Run commands and tests on stock kernels in virtual machines.
    #[command(subcommand)]
    Vm(vm::Command),
    /// Run a benchmark: baseline and candidate interleaved in one run.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::init();
    run(cli).unwrap_or_else(|error| failure::report(&error))
}

fn run(mut cli: Cli) -> anyhow::Result<ExitCode> {
    if let Command::Kv(command) = &cli.command
        && let Some(line) = kv::with_config_file(command)?
    {
        cli = Cli::parse_from(line);
    }
    match &cli.command {
        Command::Doctor(args) => doctor::run(args),
        Command::Kv(command) => kv::run(command),
        Command::Store(command) => store::run(command),
        Command::Bench(args) => bench::run(args),
        Command::Ring0(command) => ring0::run(command),
        Command::Snapshot(command) => snapshot::run(command),
        Command::Scan(args) => scan::run(args),
        Command::Vm(command) => vm::run(command),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn every_command_can_be_parsed() {
        super::Cli::command().debug_assert();
    }
}
