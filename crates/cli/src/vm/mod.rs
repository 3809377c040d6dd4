//! `bedplate vm`: runs commands and test binaries on stock kernels in QEMU.
//!
//! Failures of the guest itself have exit statuses that few commands use themselves.

mod fetch;
mod run;
mod settings;
mod test;

use std::process::ExitCode;

use bedplate_vm::Error;

use crate::failure;

/// The guest's kernel has reported an error, although the command succeeded.
const COMPLAINED: u8 = 123;
/// The time limit was over.
const TIMED_OUT: u8 = 124;
/// The guest could not be started, or died.
const FAILED: u8 = 125;

/// Commands of `bedplate vm`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a command of this machine in a guest; ends with the command's exit status.
    Run(run::Args),
    /// Run test binaries in one guest, and sum up.
    Test(test::Args),
    /// Fetch the kernels from Debian's archive.
    Fetch(fetch::Args),
}

/// Runs a command.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Run(args) => run::run(args),
        Command::Test(args) => test::run(args),
        Command::Fetch(args) => return fetch::run(args),
    };
    done.or_else(|error| {
        let console = error.downcast_ref::<Error>().and_then(Error::console).unwrap_or_default();
        if !console.is_empty() {
            eprintln!("---- the end of the guest's console ----\n{}\n----", console.trim_end());
        }
        let late = matches!(error.downcast_ref(), Some(Error::TimedOut { .. }));
        Ok(failure::report_as(&error, if late { TIMED_OUT } else { FAILED }))
    })
}

/// Prints the complaints of the guest's kernel; returns whether there are any.
fn complained(complaints: &[String]) -> bool {
    for line in complaints {
        eprintln!("the guest's kernel: {line}");
    }
    !complaints.is_empty()
}
