//! Counts of the library's work in this process. A line is appended to a file when the process ends.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::inside::Inside;
use crate::process;
use crate::settings::settings;

/// A number that only grows.
pub struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// Calls that the library served.
pub static READS_SERVED: Counter = Counter::new();
/// Bytes of these calls.
pub static BYTES_SERVED: Counter = Counter::new();
/// Calls by descriptors of served files that went to the kernel.
pub static READS_PASSED: Counter = Counter::new();
/// Files that were served.
pub static FILES: Counter = Counter::new();
/// Number of times that the daemon refused a file, or did not exist.
pub static FILES_REFUSED: Counter = Counter::new();
/// Sequential streams that began.
pub static STREAMS: Counter = Counter::new();
/// Regions that were left to the kernel, because the page cache had them.
pub static REGIONS_RESIDENT: Counter = Counter::new();
/// Files whose version changed while they were served.
pub static FILES_CHANGED: Counter = Counter::new();
/// Number of calls that waited for the device.
pub static WAITS: Counter = Counter::new();
/// Time that these calls waited, in nanoseconds.
pub static WAIT_NS: Counter = Counter::new();

/// Reads of files that are large enough to be served, by the library or by the kernel. They are counted only if the settings
/// request it.
pub static READS_TIMED: Counter = Counter::new();
/// Time that these reads took, in nanoseconds.
pub static TIMED_NS: Counter = Counter::new();

fn all() -> [(&'static str, &'static Counter); 12] {
    [
        ("reads_served", &READS_SERVED),
        ("bytes_served", &BYTES_SERVED),
        ("reads_passed", &READS_PASSED),
        ("files", &FILES),
        ("files_refused", &FILES_REFUSED),
        ("streams", &STREAMS),
        ("regions_resident", &REGIONS_RESIDENT),
        ("files_changed", &FILES_CHANGED),
        ("waits", &WAITS),
        ("wait_ns", &WAIT_NS),
        ("reads_timed", &READS_TIMED),
        ("timed_ns", &TIMED_NS),
    ]
}

/// Sets all counters to 0, because a forked child counts its own work.
pub fn reset() {
    all().iter().for_each(|(_, counter)| counter.0.store(0, Ordering::Relaxed));
}

/// Registers the writing of the statistics. A process writes them when it ends by `exit` or returns from `main`.
pub fn at_exit() {
    if settings().is_some_and(|settings| settings.statistics.is_some()) {
        // SAFETY: a function without preconditions, for the end of the process.
        unsafe { libc::atexit(write) };
    }
}

extern "C" fn write() {
    if !process::is_usable() {
        return;
    }
    let Some(_inside) = Inside::enter() else { return };
    let Some(path) = settings().and_then(|settings| settings.statistics.as_ref()) else { return };
    let counts = all().map(|(name, counter)| (name, counter.0.load(Ordering::Relaxed)));
    // A process that read no large file writes no line.
    if counts.iter().all(|(_, count)| *count == 0) {
        return;
    }
    let counts: String = counts.map(|(name, count)| format!(" {name}={count}")).concat();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    // At the end of a process an error cannot be reported.
    if let Ok(mut file) = File::options().append(true).create(true).open(path) {
        let _ = file
            .write_all(format!("pid={} program={}{counts}\n", std::process::id(), program.trim()).as_bytes());
    }
}
