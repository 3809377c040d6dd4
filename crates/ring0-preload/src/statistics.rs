//! What happened, for whoever asked to know when the process ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

use bedplate_ring0::Process;

/// The file for them. The program may have changed its environment when it ends.
static PATH: OnceLock<OsString> = OnceLock::new();

/// Writes the statistics when the process ends by `exit` or by returning from `main`.
pub fn at_exit() {
    if let Some(path) = std::env::var_os("BEDPLATE_RING0_STATISTICS") {
        PATH.get_or_init(|| path);
        // SAFETY: a function without conditions, to be called at the process's end.
        unsafe { libc::atexit(write) };
    }
}

extern "C" fn write() {
    let (Some(process), Some(path)) = (Process::current(), PATH.get()) else { return };
    let mut text = format!("pid={} cpus={}", std::process::id(), process.cpus());
    for (name, value) in process.statistics().list() {
        text += &format!(" {name}={value}");
    }
    // At the end of a process there is nobody to tell that it did not work.
    if let Ok(mut file) = File::options().append(true).create(true).open(path) {
        let _ = file.write_all((text + "\n").as_bytes());
    }
}
