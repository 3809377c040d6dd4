//! `bedplate scan run`.
//!
//! The program takes the place of this process, so its exit status, signals and process number are its own. A daemon that is
//! started for the program is not its child, so the program's `wait` does not find it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use super::accompany::SOCKET_VARIABLE;
use crate::failure::hinted;
use crate::preload::{self, reach};
use crate::units;

const LIBRARY: &str = "libbedplate_scan_preload.so";

#[derive(clap::Args)]
pub struct Args {
    /// Let the daemon that listens at this socket read (`bedplate scan serve`), and share its reads with all other programs.
    /// Without this a daemon is started for the program and for those that it starts.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The memory of the daemon that is started [default: a quarter of the machine's].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with = "socket")]
    memory: Option<u64>,
    /// The same as for `bedplate scan serve`.
    #[arg(long, hide = true, value_name = "MILLISECONDS", conflicts_with = "socket")]
    settling_time: Option<u64>,
    /// Leave smaller files to the page cache.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = units::parse_size)]
    minimum: u64,
    /// Append statistics of the served reads to a file, a line when the program ends.
    #[arg(long, value_name = "FILE")]
    statistics: Option<PathBuf>,
    #[command(flatten)]
    program: preload::Args,
}

/// Becomes the program; returns only if that fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some((program, obstacle)) = reach::obstacle(args.program.name()) {
        eprintln!("bedplate scan: running without it: {} {obstacle}", program.display());
        return args.program.run_as_it_is([]);
    }
    let socket = match &args.socket {
        Some(path) => {
            // The program also runs without a daemon, so a missing daemon is reported here.
            super::serve::connect(path)?;
            std::path::absolute(path)?
        }
        None => start_daemon(args)?,
    };
    let mut environment =
        vec![(SOCKET_VARIABLE, socket.into()), ("BEDPLATE_SCAN_MINIMUM", args.minimum.to_string().into())];
    if let Some(file) = &args.statistics {
        environment.push(("BEDPLATE_SCAN_STATISTICS", std::path::absolute(file)?.into()));
    }
    args.program.run(LIBRARY, &[], &environment)
}

/// Starts a daemon that ends with this process, and returns its socket.
fn start_daemon(args: &Args) -> anyhow::Result<PathBuf> {
    let place = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_dir());
    let place = place.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::Builder::new().prefix("bedplate-scan-").tempdir_in(&place);
    // The daemon removes the folder.
    let folder = folder.with_context(|| format!("making a folder in {}", place.display()))?.keep();
    let socket = folder.join("socket");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["scan", "serve", "--remove-folder", "--socket"]).arg(&socket);
    command.args(["--accompany", &std::process::id().to_string()]);
    for (name, value) in [("--memory", args.memory), ("--settling-time", args.settling_time)] {
        if let Some(value) = value {
            command.args([name, &value.to_string()]);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: system calls that may be made between `fork` and `exec`.
    unsafe { command.pre_exec(leave_parent) };
    let started = start(&mut command);
    if started.is_err() {
        let _ = std::fs::remove_file(&socket);
        let _ = std::fs::remove_dir(&folder);
    }
    started?;
    Ok(socket)
}

/// Starts the daemon and waits until it is ready.
fn start(command: &mut Command) -> anyhow::Result<()> {
    let mut child = command.spawn().context("starting the daemon that reads")?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // The started process ends at once, and leaves the daemon without a parent.
    child.wait().context("starting the daemon that reads")?;
    let mut line = String::new();
    BufReader::new(stdout.context("its output")?).read_line(&mut line)?;
    if line.starts_with("ready") {
        return Ok(());
    }
    // The daemon has ended, so this is its whole output.
    let said = std::io::read_to_string(stderr.context("its errors")?)?;
    Err(hinted(
        format!("the daemon that reads does not start: {}", said.trim()),
        "`bedplate doctor` says what this machine can run",
    ))
}

/// Runs in the child, so that the program that is executed next has no parent and no terminal that waits for it.
fn leave_parent() -> std::io::Result<()> {
    // SAFETY: system calls without memory. The first child has a copy of this process's only thread, and ends.
    unsafe {
        libc::setsid();
        // The daemon must not keep locks and pipes of this process's parent open. Kernels older than 5.11 leave them open.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        match libc::fork() {
            -1 => Err(std::io::Error::last_os_error()),
            0 => Ok(()),
            _ => libc::_exit(0),
        }
    }
}
