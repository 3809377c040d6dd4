//! Upgrades of `bedplate kv serve`: the process goes on with the program file that is there now, with the same arguments, all connections
//! and all data.
//!
//! A client (BEDPLATE UPGRADE) or the signal SIGUSR2 asks for it. The new program is run with `--check-handover` first, which reads its
//! arguments and says whether it can go on. Then the server stops (`bedplate_kerneldb_redis::server::Handover`), and the process executes
//! the new program, which finds the descriptors in the environment. If the exec fails, this process goes on.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, io, mem, ptr, thread};

use anyhow::{Context, anyhow, bail};
use bedplate_kerneldb::{Image, Store};
use bedplate_kerneldb_redis::limits::UPGRADE_CHECK_WAIT;
use bedplate_kerneldb_redis::server::{HANDOVER_FORMAT, Handover, READABLE_FORMATS, Upgrader};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use signal_hook::consts::SIGUSR2;
use signal_hook::iterator::Signals;

/// The environment variable with the descriptors: that of the handover, and that of the image if there is one ("7,8").
const DESCRIPTORS: &str = "BEDPLATE_HANDOVER";

/// The option by which a program says whether it can go on with the data at a place.
const CHECK: &str = "--check-handover";

/// Bytes of a new program's output that the check looks at.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// The interval at which the check's end is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// The line that a program prints for [`CHECK`].
pub fn formats() -> String {
    let numbers: Vec<String> = READABLE_FORMATS.iter().map(u32::to_string).collect();
    format!("handover {}", numbers.join(","))
}

/// The parts of a server that the program before has left to this one.
pub struct Inherited {
    pub handover: Handover,
    /// The data, if there is no data directory.
    pub image: Option<Image>,
}

impl Inherited {
    /// Takes it; `None` if this process was started in the ordinary way. Must be called once.
    pub fn take() -> anyhow::Result<Option<Inherited>> {
        let Some(text) = env::var_os(DESCRIPTORS) else { return Ok(None) };
        let numbers: Option<Vec<RawFd>> =
            text.to_str().and_then(|text| text.split(',').map(|number| number.parse().ok()).collect());
        let Some((handover, image)) = numbers.as_deref().and_then(<[RawFd]>::split_first) else {
            bail!("the environment variable {DESCRIPTORS} is for upgrades of a running server: unset it");
        };
        // SAFETY: The program before has written the file, and has left the descriptors to this one.
        let handover = unsafe { Handover::load(own(*handover)?) }?;
        let image = image.first().map(|fd| own(*fd)).transpose()?;
        let image = image.map(|fd| Image::from_file(File::from(fd))).transpose()?;
        Ok(Some(Inherited { handover, image }))
    }
}

/// A descriptor that the program before has left.
fn own(fd: RawFd) -> anyhow::Result<OwnedFd> {
    // SAFETY: The descriptor is only looked at.
    let open = fd >= 0 && fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok();
    if !open {
        bail!("the program before this one has left no descriptor {fd}");
    }
    // SAFETY: It is open, and the program before has left it to this one alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// The program file of this process, and its arguments.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Must be called when the process starts, while its file is there.
    pub fn of_this_process() -> anyhow::Result<Program> {
        let file = env::current_exe().context("finding this program's file")?;
        let mut arguments = env::args_os();
        let named = arguments.next().and_then(|name| named_file(Path::new(&name)));
        // The name can be a link, which leads to another file after an upgrade.
        let is_this = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == file);
        Ok(Program { path: named.filter(is_this).unwrap_or(file), arguments: arguments.collect() })
    }

    /// Checks that the program file that is there now can go on with the data at a place. The error is for the client.
    pub fn check(&self, place: &OsStr) -> Result<(), String> {
        let path = self.path.display();
        let failed = |what: &str| format!("the new program {path} {what}");
        let outputs = || -> io::Result<(File, File)> { Ok((output()?, output()?)) };
        let (said, errors) =
            outputs().map_err(|error| format!("there is no memory for the check: {error}"))?;
        let spawn = || -> io::Result<Child> {
            Command::new(&self.path)
                .args(&self.arguments)
                .arg(CHECK)
                .arg(place)
                .env_remove(DESCRIPTORS)
                .stdin(Stdio::null())
                .stdout(said.try_clone()?)
                .stderr(errors.try_clone()?)
                .spawn()
        };
        let mut child = spawn().map_err(|error| failed(&format!("cannot be run: {error}")))?;
        let since = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if since.elapsed() < UPGRADE_CHECK_WAIT => thread::sleep(LOOK),
                _ => {
                    // An error means that the child has ended already.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(failed("does not say whether it can go on"));
                }
            }
        };
        let (said, errors) = (text(&said), text(&errors));
        if !status.success() {
            let why =
                errors.lines().find(|line| line.starts_with("error")).unwrap_or("it does not know upgrades");
            return Err(failed(&format!("cannot go on: {}", why.trim())));
        }
        let formats = said.lines().find_map(|line| line.strip_prefix("handover "));
        let knows = |formats: &str| formats.split(',').any(|number| number == HANDOVER_FORMAT.to_string());
        match formats {
            Some(formats) if knows(formats) => Ok(()),
            _ => Err(failed("does not know this version's format of a handover")),
        }
    }

    /// Replaces this process's program, unless `stops` says at the last moment that the server is to stop. Returns the error; everything is
    /// as before then.
    pub fn replace(&self, handover: &Handover, store: &Store, stops: &AtomicBool) -> anyhow::Error {
        let attempt = || -> anyhow::Result<anyhow::Error> {
            let image = match store.data_dir() {
                Some(_) => None,
                None => Some(store.image()?.to_file().context("copying the data")?),
            };
            let file = handover.save()?;
            let mut descriptors = file.as_raw_fd().to_string();
            if let Some(image) = &image {
                fcntl_setfd(image.as_fd(), FdFlags::empty())?;
                descriptors += &format!(",{}", image.as_raw_fd());
            }
            let mut command = Command::new(&self.path);
            command.args(&self.arguments).env(DESCRIPTORS, descriptors);
            if stops.load(Ordering::Relaxed) {
                bail!("the server is shutting down");
            }
            let ignored = Ignored::now();
            let error = command.exec();
            drop(ignored);
            Ok(anyhow!("executing {}: {error}", self.path.display()))
        };
        attempt().unwrap_or_else(|error| error)
    }
}

/// The file that a shell runs under this name.
fn named_file(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return std::path::absolute(name).ok();
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A file in memory for a child's output. Unlike a pipe, it needs no reader, which might wait for the child's own children.
fn output() -> io::Result<File> {
    Ok(memfd_create("bedplate-check", MemfdFlags::CLOEXEC)?.into())
}

/// The beginning of a child's output.
fn text(mut output: &File) -> String {
    let mut text = Vec::new();
    // A message without this output is better than none.
    let _ = output.rewind().and_then(|()| output.take(OUTPUT_BYTES_MAX).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// Signals that are ignored while the next program starts, which they would end. Dropping it restores how this program handles them.
struct Ignored([(libc::c_int, libc::sigaction); 2]);

impl Ignored {
    fn now() -> Ignored {
        // A failed exec leaves SIGPIPE to end the process.
        Ignored([SIGUSR2, libc::SIGPIPE].map(|signal| {
            // SAFETY: Zeros are a valid `sigaction`, and the call only writes `old`.
            let old = unsafe {
                let mut old = mem::zeroed();
                let ignore = libc::sigaction { sa_sigaction: libc::SIG_IGN, ..mem::zeroed() };
                libc::sigaction(signal, &raw const ignore, &raw mut old);
                old
            };
            (signal, old)
        }))
    }
}

impl Drop for Ignored {
    fn drop(&mut self) {
        for (signal, old) in &self.0 {
            // SAFETY: The action was in force before.
            unsafe { libc::sigaction(*signal, ptr::from_ref(old), ptr::null_mut()) };
        }
    }
}

/// Upgrades the server at SIGUSR2, once there is one. The thread lives as long as the process.
#[derive(Clone)]
pub struct UpgradeSignal(Arc<Mutex<Option<Upgrader>>>);

impl UpgradeSignal {
    /// Catches the signal. Until [`UpgradeSignal::serves`], it is without effect.
    pub fn catch() -> anyhow::Result<UpgradeSignal> {
        let mut signals = Signals::new([SIGUSR2]).context("handling signals")?;
        let upgrader = UpgradeSignal(Arc::default());
        let target = upgrader.clone();
        let thread = thread::Builder::new().name("upgrades".into()).spawn(move || {
            for _ in signals.forever() {
                match &*target.0.lock().unwrap_or_else(PoisonError::into_inner) {
                    Some(upgrader) => upgrader.request(),
                    None => tracing::warn!("no upgrade: the server is starting or stopping"),
                }
            }
        });
        thread.map(|_| upgrader).map_err(|error: io::Error| anyhow!("starting a thread: {error}"))
    }

    /// The server that is upgraded at the signal; `None` if there is none.
    pub fn serves(&self, upgrader: Option<Upgrader>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = upgrader;
    }
}
