//! The time that reads take, for comparisons of a program with and without the library. Timing costs two system calls for each read, so
//! only a setting switches it on.

use std::ffi::c_int;
use std::time::Instant;

use crate::files;
use crate::inside::Inside;
use crate::process;
use crate::settings::settings;
use crate::statistics::{READS_TIMED, TIMED_NS};

/// Begins to time a read, if its file is large enough to be served. `None`: the read is not timed.
pub fn begin(descriptor: c_int) -> Option<Instant> {
    if descriptor < 0 || !process::is_usable() || !settings()?.time_reads {
        return None;
    }
    let _inside = Inside::enter()?;
    // SAFETY: the program's descriptor.
    files::size_to_serve(unsafe { files::borrow(descriptor) }).map(|_| Instant::now())
}

/// Counts a read that has ended.
pub fn end(start: Option<Instant>) {
    if let Some(start) = start {
        READS_TIMED.add(1);
        TIMED_NS.add(start.elapsed().as_nanos() as u64);
    }
}
