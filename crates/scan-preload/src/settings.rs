//! The settings in the environment. The library reads them once, before `main`.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::limits::{LARGE_READ, MINIMUM_BYTES, REST_BYTES, RUN_BYTES, SHORT_REST_BYTES};

/// The variables, which the library's documentation explains.
#[derive(Debug)]
pub struct Settings {
    pub socket: PathBuf,
    pub minimum: u64,
    pub thresholds: Thresholds,
    /// Files are served although the page cache has them.
    pub serves_resident: bool,
    pub statistics: Option<PathBuf>,
}

/// Where serving begins. With a small minimum these are smaller, too, because otherwise no file of that size would be served.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// At most [`RUN_BYTES`].
    pub run: i64,
    /// At most [`LARGE_READ`].
    pub large_read: u64,
    /// At most [`SHORT_REST_BYTES`].
    pub short_rest: u64,
    /// At most [`REST_BYTES`].
    pub rest: i64,
}

impl Thresholds {
    fn of(minimum: u64) -> Self {
        // Fewer bytes than a page are not worth it at any size.
        let share = |most: u64| (most.min(minimum / (MINIMUM_BYTES / most))).max(4096);
        Self {
            run: share(RUN_BYTES as u64) as i64,
            large_read: share(LARGE_READ as u64),
            short_rest: share(SHORT_REST_BYTES),
            rest: share(REST_BYTES as u64) as i64,
        }
    }
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// Reads them. Gives whether there is a daemon.
pub fn load() -> bool {
    SETTINGS.get_or_init(read).is_some()
}

/// The settings. `None`: there is no daemon, or they are not read yet.
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get()?.as_ref()
}

fn read() -> Option<Settings> {
    let path =
        |name| variable(name).filter(|value| !value.is_empty()).map(|value| OsStr::from_bytes(value).into());
    let minimum = variable(c"BEDPLATE_SCAN_MINIMUM")
        .and_then(|value| str::from_utf8(value).ok()?.parse().ok())
        .unwrap_or(MINIMUM_BYTES);
    Some(Settings {
        socket: path(c"BEDPLATE_SCAN_SOCKET")?,
        minimum,
        thresholds: Thresholds::of(minimum),
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
