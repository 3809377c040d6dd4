//! The settings in the environment. The library reads them once, before `main`.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::limits::{LARGE_READ, MINIMUM_BYTES, PATIENCE, REST_BYTES, RUN_BYTES, SHORT_READ, STREAM_BYTES};
use crate::process;

/// The values of the variables. The library's documentation explains them.
#[derive(Debug)]
pub struct Settings {
    /// `None`: nothing is served, and reads are timed.
    pub socket: Option<PathBuf>,
    pub minimum: u64,
    pub thresholds: Thresholds,
    /// Maximum time of each step with the daemon.
    pub patience: Duration,
    /// Whether files are served even if the page cache has them.
    pub serves_resident: bool,
    pub statistics: Option<PathBuf>,
    pub time_reads: bool,
}

/// The numbers of bytes at which serving begins. They are smaller if the minimum is small. Otherwise no file of that size would
/// be served.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// At most [`RUN_BYTES`].
    pub run: u64,
    /// At most [`LARGE_READ`].
    pub large_read: u64,
    /// At most [`STREAM_BYTES`].
    pub stream: u64,
    /// At most [`REST_BYTES`].
    pub rest: u64,
}

impl Thresholds {
    pub fn of(minimum: u64) -> Self {
        let share = |most: u64| most.min(minimum / (MINIMUM_BYTES / most)).max(SHORT_READ);
        Self {
            run: share(RUN_BYTES),
            large_read: share(LARGE_READ),
            stream: share(STREAM_BYTES),
            rest: share(REST_BYTES),
        }
    }
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// Reads the settings. Returns whether the library has anything to do.
pub fn load() -> bool {
    let settings = SETTINGS.get_or_init(read).as_ref();
    let has_daemon = settings.is_some_and(|settings| settings.socket.is_some());
    settings.is_some() && process::begin(has_daemon)
}

/// The settings. `None`: the library has nothing to do, or has not read them yet.
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get()?.as_ref()
}

fn read() -> Option<Settings> {
    let path =
        |name| variable(name).filter(|value| !value.is_empty()).map(|value| OsStr::from_bytes(value).into());
    let (socket, time_reads) =
        (path(c"BEDPLATE_SCAN_SOCKET"), variable(c"BEDPLATE_SCAN_TIME_READS") == Some(b"1"));
    let minimum = variable(c"BEDPLATE_SCAN_MINIMUM")
        .and_then(|value| str::from_utf8(value).ok()?.parse().ok())
        .unwrap_or(MINIMUM_BYTES);
    (socket.is_some() || time_reads).then(|| Settings {
        socket,
        time_reads,
        minimum,
        thresholds: Thresholds::of(minimum),
        patience: variable(c"BEDPLATE_SCAN_PATIENCE")
            .and_then(|value| str::from_utf8(value).ok()?.parse().ok())
            .map_or(PATIENCE, Duration::from_millis),
        serves_resident: variable(c"BEDPLATE_SCAN_RESIDENT") == Some(b"serve"),
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
