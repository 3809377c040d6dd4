//! `bedplate snapshot stats`: statistics about the snapshots of running programs.

mod figures;
mod prometheus;
mod render;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bedplate_snapshot::statistics::processes::{self, Unreadable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::failure::hinted;
use crate::units::parse_time;

/// The shortest time between two readings.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Arguments of `bedplate snapshot stats`.
#[derive(clap::Args)]
pub struct Args {
    /// The process to look at; without it, all that run with instant snapshots and may be looked at.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pid: Option<u32>,
    /// Print JSON; with --watch, an object per line.
    #[arg(long)]
    json: bool,
    /// Repeat until the process ends, at this interval: 5, 500ms, 1m.
    #[arg(long, value_name = "SECONDS", value_parser = parse_time)]
    watch: Option<Duration>,
    /// Write a file for the textfile collector of Prometheus's node_exporter instead; its name should end with .prom.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    prometheus: Option<PathBuf>,
}

/// Prints once, or until the process ends.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.pid {
        Some(pid) => one(args, pid),
        None => all(args),
    }
}

fn one(args: &Args, pid: u32) -> anyhow::Result<ExitCode> {
    let mut process = processes::read(pid).map_err(refused)?;
    let Some(interval) = args.watch else {
        match &args.prometheus {
            Some(file) => prometheus::write(file, &[process])?,
            None if args.json => render::json(&process, true)?,
            None => render::table(&process)?,
        }
        return Ok(ExitCode::SUCCESS);
    };
    // The ID is the process's, even if a thread's was given.
    let pid = process.pid;
    let life = Life::of(pid)?;
    let mut lines = render::Lines::new();
    loop {
        match &args.prometheus {
            Some(file) => prometheus::write(file, &[process])?,
            None if args.json => render::json(&process, false)?,
            None => lines.print(&process)?,
        }
        let has_ended = life.ends_within(interval.max(SHORTEST_INTERVAL))?;
        process = match processes::read(pid) {
            Ok(process) if !has_ended => process,
            read => {
                if let Some(file) = &args.prometheus {
                    remove(file)?;
                }
                match read {
                    // Another process may have the ID by now.
                    Err(error) if !has_ended && !matches!(error, Unreadable::NoProcess { .. }) => {
                        return Err(refused(error));
                    }
                    _ => {}
                }
                eprintln!("process {pid} has ended");
                return Ok(ExitCode::SUCCESS);
            }
        };
    }
}

fn all(args: &Args) -> anyhow::Result<ExitCode> {
    loop {
        let (processes, hidden) = processes::all().context("/proc")?;
        match &args.prometheus {
            Some(file) => prometheus::write(file, &processes)?,
            None if args.json => render::json_list(&processes, hidden, args.watch.is_none())?,
            None => render::list(&processes, hidden)?,
        }
        let Some(interval) = args.watch else { return Ok(ExitCode::SUCCESS) };
        thread::sleep(interval.max(SHORTEST_INTERVAL));
        if !args.json && args.prometheus.is_none() {
            writeln!(io::stdout())?;
        }
    }
}

/// Removes the file, because the collector must not find the values of a process that has ended.
fn remove(file: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}

fn refused(error: Unreadable) -> anyhow::Error {
    match error.hint() {
        Some(hint) => hinted(error.to_string(), hint),
        None => error.into(),
    }
}

/// A process, distinct from a later one with the same ID.
struct Life(OwnedFd);

impl Life {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let gone = || refused(Unreadable::NoProcess { pid });
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        match pidfd_open(number, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => Err(gone()),
            opened => Ok(Self(opened.with_context(|| format!("watching process {pid}"))?)),
        }
    }

    /// Waits for `time`, or until the process ends. Returns whether it has ended.
    fn ends_within(&self, time: Duration) -> anyhow::Result<bool> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut ends = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut ends, Some(&time)) {
            Ok(count) => Ok(count > 0),
            // A signal has interrupted the call, for instance because this process was stopped and continued.
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("waiting for the process"),
        }
    }
}
