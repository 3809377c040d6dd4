//! The numbers of the library's own descriptors.
//!
//! A program that was started without some of the standard descriptors writes to the file that gets their numbers. So
//! none of the library's descriptors has one of these numbers.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Gives a file a number above those of the standard descriptors.
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
