//! How long reads take, for those who compare a program with and without the library. It costs two system calls a read, so it is switched on
//! by the settings only.

use std::ffi::c_int;
use std::time::Instant;

use crate::files;
use crate::inside::Inside;
use crate::process;
use crate::settings::settings;
use crate::statistics::{READS_TIMED, TIMED_NS};

/// When a read of a file began that is large enough to be served. `None`: the read is not timed.
pub fn begin(descriptor: c_int) -> Option<Instant> {
    if descriptor < 0 || !process::is_usable() || !settings()?.time_reads {
        return None;
    }
    let _inside = Inside::enter()?;
    // SAFETY: the program's descriptor.
    files::may_be_served(unsafe { files::borrow(descriptor) }).then(Instant::now)
}

/// The read has ended.
pub fn end(start: Option<Instant>) {
    if let Some(start) = start {
        READS_TIMED.add(1);
        TIMED_NS.add(start.elapsed().as_nanos() as u64);
    }
}
