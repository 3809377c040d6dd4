//! A loop device on the file, for the paper's comparison with a device file, where no other device is available.
//!
//! The loop device and its reader both bypass the page cache. A worker of the kernel executes every read, which a real
//! device would not need.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// `struct loop_config` of linux/loop.h, of which only a few fields are needed.
#[repr(C)]
struct Config {
    file: u32,
    block: u32,
    /// `struct loop_info64` up to its flags.
    before: [u64; 5],
    numbers: [u32; 3],
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// `LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO`
const FLAGS: u32 = 1 | 4 | 16;
const GET_FREE: libc::c_ulong = 0x4c82;
const CONFIGURE: libc::c_ulong = 0x4c0a;

/// A loop device. The kernel removes it when no process has it open, even if this process is killed.
pub struct Loop {
    path: PathBuf,
    _open: File,
}

impl Loop {
    /// Sets up a loop device, or returns the reason why there cannot be one.
    pub fn over(file: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        const { assert!(size_of::<Config>() == 8 + 232 + 64) };
        let config = Config {
            file: file.as_raw_fd() as u32,
            block: 4096,
            before: [0; 5],
            numbers: [0; 3],
            flags: FLAGS,
            names: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        // Another process may take the free device first.
        for _ in 0..16 {
            // SAFETY: a call without pointers on an open descriptor.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = OpenOptions::new().read(true).open(&path)?;
            // SAFETY: the configuration is as linux/loop.h has it, and outlives the call.
            if unsafe { libc::ioctl(open.as_raw_fd(), CONFIGURE, &raw const config) } == 0 {
                return Ok(Self { path, _open: open });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
