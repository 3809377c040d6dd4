//! `bedplate vm test`.

use std::io::{stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bedplate_vm::{Job, Machine};

use super::settings::Settings;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// An argument for every test binary, for example the name of a test.
    #[arg(long = "arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    args: Vec<String>,
    /// Test binaries, as cargo builds them.
    #[arg(required = true, value_name = "BINARY")]
    binaries: Vec<PathBuf>,
}

/// Runs test binaries in one guest, one after the other.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = args.settings.machine()?;
    let jobs: Vec<Job> = args
        .binaries
        .iter()
        .map(|binary| {
            let words = std::iter::once(path(binary)).chain(args.args.iter().cloned());
            Job::new(words).title(format!("\n     Running {} in the guest", short_name(binary)))
        })
        .collect();
    let attempt = |machine: &Machine| machine.run(&jobs, &mut stdout(), &mut stderr());
    let report = machine.run_despite_losses(attempt, |why| eprintln!("{why}"))?;
    println!();
    for (binary, status) in args.binaries.iter().zip(&report.statuses) {
        println!("{}: {}", short_name(binary), outcome(*status));
    }
    let failed = report.statuses.iter().filter(|status| **status != 0).count();
    println!(
        "{} of {} test binaries passed on Linux {} in {:.0?} ({:.0?} to boot)",
        jobs.len() - failed,
        jobs.len(),
        report.log.split_whitespace().skip_while(|word| *word != "version").nth(1).unwrap_or("?"),
        report.whole,
        report.boot,
    );
    let complained = super::complained(&report.complaints);
    Ok(ExitCode::from(match (failed, complained) {
        (0, false) => 0,
        (0, true) => super::COMPLAINED,
        _ => 1,
    }))
}

fn path(binary: &Path) -> String {
    std::path::absolute(binary).unwrap_or_else(|_| binary.into()).display().to_string()
}

/// The name of a test binary without cargo's hash.
fn short_name(binary: &Path) -> String {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name.to_owned()
        }
        _ => name.into_owned(),
    }
}

fn outcome(status: i32) -> String {
    match status {
        0 => "passed".into(),
        101 => "failed".into(),
        signal @ 129..=192 => format!("killed by signal {}", signal - 128),
        other => format!("failed with status {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_readable() {
        assert_eq!(short_name(Path::new("/x/deps/enter-0123456789abcdef")), "enter");
        assert_eq!(short_name(Path::new("a-b")), "a-b");
        assert_eq!(outcome(139), "killed by signal 11");
        assert_eq!((outcome(0), outcome(101)), ("passed".into(), "failed".into()));
    }
}
