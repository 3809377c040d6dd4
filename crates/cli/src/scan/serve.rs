//! `bedplate scan serve`: one service for all processes that scan, until a signal.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bedplate_scan::{Choice, Daemon, Options, Service};

use super::accompany::accompany;
use super::{advised, parse_engine};
use crate::descriptors;
use crate::failure::hinted;
use crate::signals::Stops;
use crate::units::parse_size;

/// Arguments of `bedplate scan serve`.
#[derive(clap::Args)]
pub struct Args {
    /// The socket to listen at [default: $XDG_RUNTIME_DIR/bedplate/scan.sock, or /run/bedplate/scan.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The group that may connect, beside the user who runs this.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// The engine that reads: auto, io_uring or threads.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = parse_engine)]
    engine: Choice,
    /// The memory of all channels and pools together [default: a quarter of the machine's].
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    memory: Option<u64>,
    /// Most channels and pools at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    connections: usize,
    /// Use huge pages that the administrator reserved (vm.nr_hugepages) for channels and pools, as far as there are enough.
    #[arg(long)]
    reserved_pages: bool,
    /// End when the process with this number and every process that it left behind have ended.
    #[arg(long, value_name = "PID")]
    accompany: Option<i32>,
    /// Read files that were not changed for this number of milliseconds (10000). Less is for tests, and for programs that neither
    /// write past the page cache nor write to mapped files.
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    settling_time: Option<u64>,
    /// Remove the folder of the socket at the end.
    #[arg(long, hide = true)]
    remove_folder: bool,
}

/// Serves until the end.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stops = Stops::catch()?;
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => usual_path()?,
    };
    let mut options = Options::default();
    options.group = args.group.as_deref().map(group).transpose()?;
    options.limits.connections = args.connections;
    if let Some(memory) = args.memory {
        options.limits.memory = memory;
    }
    // Each file of a client takes a descriptor of this process.
    descriptors::raise();
    let mut service = Service::builder().engine(args.engine).reserved_pages(args.reserved_pages);
    if let Some(time) = args.settling_time {
        service = service.settling_time(Duration::from_millis(time));
    }
    let service = service.build().map_err(advised)?;
    // The socket is removed in the end.
    stops.serves();
    let daemon = Daemon::bind(service.clone(), &path, &options)?;
    let stopper = daemon.stopper();
    if let Some(process) = args.accompany {
        accompany(process, path.clone(), stopper.clone())?;
    }
    // Programs that start this one wait for this line.
    writeln!(io::stdout(), "ready on {}", path.display())?;
    io::stdout().flush()?;
    tracing::info!("{}", service.about());
    stops.started(move || stopper.stop());
    let served = daemon.run();
    stops.end();
    if let (true, Some(folder)) = (args.remove_folder, path.parent()) {
        // The folder may have other files; then it stays.
        let _ = std::fs::remove_dir(folder);
    }
    served?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// The default socket of a user's, or of the machine's, daemon. Creates its folder.
fn usual_path() -> anyhow::Result<PathBuf> {
    let (folder, mode) = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => (PathBuf::from(folder), 0o700),
        _ => (PathBuf::from("/run"), 0o755),
    };
    let folder = folder.join("bedplate");
    let made = std::fs::DirBuilder::new().mode(mode).create(&folder);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(hinted(format!("{}: {error}", folder.display()), "choose another place with --socket"))
        }
        _ => Ok(folder.join("scan.sock")),
    }
}

/// A group's number, from its number or its name.
fn group(name: &str) -> anyhow::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let wanted = CString::new(name).context("--group")?;
    let mut buffer = vec![0; 64 << 10];
    // SAFETY: plain old data.
    let mut group: libc::group = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all of it outlives the call, and the buffer is as long as it says.
    let error = unsafe {
        libc::getgrnam_r(wanted.as_ptr(), &mut group, buffer.as_mut_ptr(), buffer.len(), &mut found)
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error)).context(format!("looking for the group {name}"));
    }
    if found.is_null() {
        return Err(hinted(format!("there is no group {name}"), "`getent group` lists them"));
    }
    Ok(group.gr_gid)
}

/// A service that listens at a path.
pub fn connect(path: &Path) -> anyhow::Result<Service> {
    Service::connect(path).map_err(|error| match error {
        error @ bedplate_scan::Error::File { .. } => {
            hinted(error.to_string(), "`bedplate scan serve --socket PATH` listens there")
        }
        error => error.into(),
    })
}
