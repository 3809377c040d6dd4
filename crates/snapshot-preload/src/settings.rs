//! What the environment asks for, as it was when the program's memory was first asked for.
//!
//! It is read once. Servers change their environment while they run, some to make room for a title of their
//! process: then a variable may be missing for a moment, and the place where it was has other contents.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// An engine that somebody has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Remap,
    Uffd,
    Ring0,
}

/// The variables, which the library's documentation explains.
#[derive(Debug)]
pub struct Settings {
    pub engine: Option<Engine>,
    pub is_required: bool,
    pub huge_pages: bool,
    /// Bytes.
    pub region: Option<usize>,
    /// Bytes.
    pub minimum: Option<usize>,
    pub statistics: Option<PathBuf>,
}

/// The settings. They are read by the first call, which comes before `main`.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        engine: match variable(c"BEDPLATE_SNAPSHOT_ENGINE") {
            Some(b"remap") => Some(Engine::Remap),
            Some(b"uffd") => Some(Engine::Uffd),
            Some(b"ring0") => Some(Engine::Ring0),
            _ => None,
        },
        is_required: variable(c"BEDPLATE_SNAPSHOT_REQUIRED") == Some(b"1"),
        huge_pages: variable(c"BEDPLATE_SNAPSHOT_HUGE_PAGES") != Some(b"0"),
        region: bytes(c"BEDPLATE_SNAPSHOT_BYTES"),
        minimum: bytes(c"BEDPLATE_SNAPSHOT_MINIMUM"),
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
    // SAFETY: a string of the environment, which nobody changes before `main`. It is copied by the caller.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}
