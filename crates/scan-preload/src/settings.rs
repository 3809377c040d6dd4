//! The settings in the environment. The library reads them once, before `main`.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limits::MINIMUM_BYTES;

/// The variables, which the library's documentation explains.
#[derive(Debug)]
pub struct Settings {
    /// `None`: nothing is served, and reads are timed.
    pub socket: Option<PathBuf>,
    pub minimum: u64,
    pub statistics: Option<PathBuf>,
    pub time_reads: bool,
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// Whether the library serves this process.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Reads them. Gives whether the library has something to do.
pub fn load() -> bool {
    let settings = SETTINGS.get_or_init(read).as_ref();
    let has_daemon = settings.is_some_and(|settings| settings.socket.is_some());
    ACTIVE.store(has_daemon, Ordering::Relaxed);
    settings.is_some()
}

/// Whether reads are served.
pub fn are_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Leaves all reads to the kernel from now on.
pub fn deactivate() {
    ACTIVE.store(false, Ordering::Relaxed);
}

/// The settings. `None`: the library has nothing to do, or they are not read yet.
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get()?.as_ref()
}

fn read() -> Option<Settings> {
    let path =
        |name| variable(name).filter(|value| !value.is_empty()).map(|value| OsStr::from_bytes(value).into());
    let (socket, time_reads) =
        (path(c"BEDPLATE_SCAN_SOCKET"), variable(c"BEDPLATE_SCAN_TIME_READS") == Some(b"1"));
    (socket.is_some() || time_reads).then(|| Settings {
        socket,
        time_reads,
        minimum: variable(c"BEDPLATE_SCAN_MINIMUM")
            .and_then(|value| str::from_utf8(value).ok()?.parse().ok())
            .unwrap_or(MINIMUM_BYTES),
        statistics: path(c"BEDPLATE_SCAN_STATISTICS"),
    })
}

/// A variable's value. The C library's function is used, because it takes no lock and no memory.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a string of the environment, which does not change before `main`. The caller copies it.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}
