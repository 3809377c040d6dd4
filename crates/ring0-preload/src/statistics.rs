//! Writing the statistics when the process ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

use bedplate_ring0::Process;

/// The path of the statistics file. It is read at the start, because the program may change its environment.
static PATH: OnceLock<OsString> = OnceLock::new();

/// Writes the statistics when the process ends by `exit` or by returning from `main`.
pub fn at_exit() {
    if let Some(path) = std::env::var_os("BEDPLATE_RING0_STATISTICS") {
        PATH.get_or_init(|| path);
        // SAFETY: `write` has no preconditions when the process ends.
        unsafe { libc::atexit(write) };
    }
}

extern "C" fn write() {
    let (Some(process), Some(path)) = (Process::current(), PATH.get()) else { return };
    let mut text = format!("pid={} cpus={}", std::process::id(), process.cpus());
    for (name, value) in process.statistics().list() {
        text += &format!(" {name}={value}");
    }
    // Errors are ignored, because there is no way to report them at the end of a process.
    if let Ok(mut file) = File::options().append(true).create(true).open(path) {
        let _ = file.write_all((text + "\n").as_bytes());
    }
}
