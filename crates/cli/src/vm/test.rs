//! `bedplate vm test`.

use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bedplate_vm::{Acceleration, Job};

use super::settings::Settings;

/// How often a guest that was lost in software is started again.
const RESTARTS: u32 = 2;

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
    let mut restarts = 0;
    let report = loop {
        let mut errors = Watched { inner: stderr(), line: Vec::new(), shut_down: false };
        match machine.run(&jobs, &mut stdout(), &mut errors) {
            Err(error) if restarts < RESTARTS && machine.was_lost(&error) => {
                restarts += 1;
                eprintln!("{}\n----", error.console().unwrap_or_default());
                eprintln!("{error}: all of it runs again in a new guest (docs/vm.md)");
            }
            // QEMU's virtual processors do so of themselves.
            Ok(_)
                if errors.shut_down
                    && restarts < RESTARTS
                    && machine.acceleration() == Acceleration::Software =>
            {
                restarts += 1;
                eprintln!("a virtual processor shut down: all of it runs again in a new guest (docs/vm.md)");
            }
            ended => break ended?,
        }
    };
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

/// Passes on what tests write, and notices when ring 0 says that a virtual processor shut down.
struct Watched<W> {
    inner: W,
    line: Vec<u8>,
    shut_down: bool,
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        for byte in &bytes[..written] {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line);
            self.shut_down |=
                line.contains("bedplate-ring0: vCPU") && line.contains("the processor shut down");
            self.line.clear();
        }
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
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
    fn a_processor_that_shut_down_is_noticed() {
        let mut watched = Watched { inner: Vec::new(), line: Vec::new(), shut_down: false };
        watched.write_all(b"test a ... ok\nbedplate-ring0: vCPU 7: the processor").unwrap();
        assert!(!watched.shut_down);
        watched.write_all(b" shut down; rip=0xfff0\nAborted\n").unwrap();
        assert!(watched.shut_down && watched.inner.ends_with(b"Aborted\n"));
    }

    #[test]
    fn results_are_readable() {
        assert_eq!(short_name(Path::new("/x/deps/enter-0123456789abcdef")), "enter");
        assert_eq!(short_name(Path::new("a-b")), "a-b");
        assert_eq!(outcome(139), "killed by signal 11");
        assert_eq!((outcome(0), outcome(101)), ("passed".into(), "failed".into()));
    }
}
