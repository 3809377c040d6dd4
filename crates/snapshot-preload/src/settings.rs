//! The settings in the environment. The library reads them once, before `main`.
//!
//! Some servers change their environment to make room for the title of their process. Then a variable may be missing for a
//! moment, and its old memory gets other content.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use bedplate_snapshot::{Kind, PAGE};

/// Default minimum size of mappings that are placed in the arena.
const MINIMUM: usize = 1 << 20;

/// The variables, which the library's documentation explains.
#[derive(Debug)]
pub struct Settings {
    /// The engine that the user requests.
    pub engine: Option<Kind>,
    pub is_required: bool,
    pub huge_pages: bool,
    /// Bytes of the arena in ring 0.
    pub arena: Option<usize>,
    /// Minimum size in bytes of a mapping that is placed in the arena.
    pub minimum: usize,
    /// The file to which statistics are appended.
    pub statistics: Option<PathBuf>,
}

/// The settings. They are read by the first call, which comes before `main`.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        engine: match variable(c"BEDPLATE_SNAPSHOT_ENGINE") {
            Some(b"remap") => Some(Kind::Remap),
            Some(b"uffd") => Some(Kind::Uffd),
            Some(b"ring0") => Some(Kind::Ring0),
            _ => None,
        },
        is_required: variable(c"BEDPLATE_SNAPSHOT_REQUIRED") == Some(b"1"),
        huge_pages: variable(c"BEDPLATE_SNAPSHOT_HUGE_PAGES") != Some(b"0"),
        arena: bytes(c"BEDPLATE_SNAPSHOT_BYTES"),
        minimum: bytes(c"BEDPLATE_SNAPSHOT_MINIMUM").unwrap_or(MINIMUM).max(PAGE),
        statistics: variable(c"BEDPLATE_SNAPSHOT_STATISTICS").map(|path| OsStr::from_bytes(path).into()),
    })
}

fn bytes(name: &CStr) -> Option<usize> {
    str::from_utf8(variable(name)?).ok()?.parse().ok()
}

/// A variable's value. The C library's function is used, because the program's allocator may be waiting for this.
fn variable(name: &CStr) -> Option<&[u8]> {
    // SAFETY: a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a string of the environment, which does not change before `main`. The caller copies it.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}
