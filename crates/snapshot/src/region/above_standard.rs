//! The numbers of the library's own descriptors.
//!
//! If a program is started without some of the standard descriptors, it writes to whatever file gets their numbers.
//! The library's descriptors therefore never have these numbers.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Gives a file a descriptor number above the standard descriptors.
pub fn above_standard(file: OwnedFd) -> Result<OwnedFd, Errno> {
    if file.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(file);
    }
    rustix::io::fcntl_dupfd_cloexec(&file, libc::STDERR_FILENO + 1)
}

/// Opens a file for reading.
pub fn open(path: &CStr) -> Result<OwnedFd, Errno> {
    above_standard(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
