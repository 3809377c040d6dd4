//! How long a snapshot's processes live: a child, its children, and whoever else inherited its memory.
//!
//! They all map a file that was opened for them and is locked as long as it is open, and a mapping keeps it so. That
//! does not depend on descriptors, which a daemon closes, nor on process numbers.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, flock, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::PAGE;
use crate::region::path;

/// The owner's end.
pub(super) struct Life(OwnedFd);

/// The mapping that a child inherits. The owner drops it after the fork.
pub(super) struct Anchor(usize);

impl Life {
    pub fn new() -> Result<(Self, Anchor), Errno> {
        let file = memfd_create(c"bedplate-snapshot", MemfdFlags::CLOEXEC)?;
        let mut name = [0; 32];
        let name = path(&mut name, format_args!("/proc/self/fd/{}\0", file.as_raw_fd()));
        // Opened anew: locks belong to what was opened, not to the file.
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        flock(&theirs, FlockOperation::NonBlockingLockExclusive)?;
        // SAFETY: a new mapping at an address of the kernel's choice, which nobody can access.
        let at =
            unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::empty(), MapFlags::SHARED, &theirs, 0) }?;
        Ok((Self(file), Anchor(at as usize)))
    }

    /// Whether nobody has it mapped any more.
    pub fn is_over(&self) -> bool {
        flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        let _ = unsafe { munmap(std::ptr::without_provenance_mut(self.0), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// It lasts as long as a grandchild that has closed all it could.
    #[test]
    fn it_is_over_when_the_last_process_is() {
        let (life, anchor) = Life::new().unwrap();
        assert!(!life.is_over());
        let (read, write) = rustix::pipe::pipe().unwrap();
        // SAFETY: the children make system calls only and end.
        unsafe {
            if libc::fork() == 0 {
                if libc::fork() == 0 {
                    libc::dup2(read.as_raw_fd(), 0);
                    libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                    libc::read(0, (&raw mut *Box::leak(Box::new(0u8))).cast(), 1);
                }
                libc::_exit(0);
            }
            libc::wait(std::ptr::null_mut());
        }
        drop(anchor);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!life.is_over());
        drop(write);
        let begin = Instant::now();
        while !life.is_over() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
