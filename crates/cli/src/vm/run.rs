//! `bedplate vm run`.

use std::io::{stderr, stdout};
use std::process::ExitCode;

use bedplate_vm::Job;

use super::settings::Settings;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Print the kernel's log, too.
    #[arg(long)]
    dmesg: bool,
    /// The command and its arguments: a program of this machine, or one of busybox's.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs a command in a guest. The exit status is the command's.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = args.settings.machine()?;
    let report = machine.run(&[Job::new(args.command.clone())], &mut stdout(), &mut stderr())?;
    if args.dmesg {
        eprint!("{}", report.log);
    }
    tracing::info!(boot = ?report.boot, whole = ?report.whole, how = ?machine.acceleration(), "the guest ended");
    let complained = super::complained(&report.complaints);
    match report.statuses.as_slice() {
        [0] if complained => Ok(ExitCode::from(super::COMPLAINED)),
        [status] => Ok(ExitCode::from(u8::try_from(*status).unwrap_or(1))),
        _ => Ok(ExitCode::FAILURE),
    }
}
