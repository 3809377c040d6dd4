//! What happened, for whoever asked to know when the process ends.

use std::fs::File;
use std::io::Write;

use crate::{forks, heap};

/// Writes the statistics when the process ends by `exit` or by returning from `main`.
pub fn at_exit() {
    if crate::variable(c"BEDPLATE_SNAPSHOT_STATISTICS").is_some() {
        // SAFETY: a function without conditions, to be called at the process's end.
        unsafe { libc::atexit(write) };
    }
}

extern "C" fn write() {
    let path = std::env::var_os("BEDPLATE_SNAPSHOT_STATISTICS");
    let (Some(region), Some(path), false) = (heap::region(), path, forks::is_snapshot()) else { return };
    let text = format!("pid={} {}\n", std::process::id(), region.statistics());
    // At the end of a process there is nobody to tell that it did not work.
    if let Ok(mut file) = File::options().append(true).create(true).open(path) {
        let _ = file.write_all(text.as_bytes());
    }
}
