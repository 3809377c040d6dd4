//! Whether processes live that inherited the region: children, their children, and whoever else has its memory.
//!
//! They all inherit a mapping of one file. The kernel tells whether a file is mapped for writing when it is asked to seal
//! it against that. This depends neither on descriptors, which a daemon closes, nor on process numbers.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::PAGE;

/// The children that were forked since none lived.
#[derive(Default)]
pub(super) struct Children {
    /// The file that they map; a sealed one is replaced.
    file: Option<OwnedFd>,
    /// How many were forked.
    forked: u64,
    /// One was forked without an anchor. It may live as long as this process.
    is_untracked: bool,
}

/// The mapping that a child inherits. The owner drops it after the fork.
pub(super) struct Anchor(usize);

impl Children {
    /// Makes the file for the next child, if there is none.
    pub fn prepare(&mut self) -> Result<(), Errno> {
        if self.file.is_none() {
            self.file = Some(make()?);
        }
        Ok(())
    }

    /// A child is about to be forked. If it fails the child can be forked all the same, and counts as living for ever.
    pub fn fork(&mut self) -> Option<Anchor> {
        let anchor = self.prepare().and_then(|()| {
            let flags = MapFlags::SHARED;
            let file = self.file.as_ref().ok_or(Errno::BADF)?;
            // SAFETY: a new mapping at an address of the kernel's choice, which nobody can access.
            unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::empty(), flags, file, 0) }
        });
        self.forked += 1;
        self.is_untracked |= anchor.is_err();
        anchor.ok().map(|at| Anchor(at as usize))
    }

    /// How many were forked since none lived; 0 if none lives. Whoever asks has no [`Anchor`].
    pub fn living(&mut self) -> u64 {
        if self.forked == 0 || self.is_untracked {
            return self.forked;
        }
        let sealed = self.file.as_ref().map(|file| fcntl_add_seals(file, SealFlags::WRITE));
        if sealed == Some(Err(Errno::BUSY)) {
            return self.forked;
        }
        self.forked = 0;
        self.file = None;
        // If it fails it is tried again at the next fork.
        let _ = self.prepare();
        0
    }
}

fn make() -> Result<OwnedFd, Errno> {
    let file = memfd_create(c"bedplate-children", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, PAGE as u64)?;
    Ok(file)
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
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    /// They live as long as a grandchild that has closed all it could.
    #[test]
    fn they_live_until_the_last_process_has_ended() {
        let mut children = Children::default();
        assert_eq!(children.living(), 0);
        for _ in 0..2 {
            let anchor = children.fork().unwrap();
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
            assert_eq!(children.living(), 1);
            drop(write);
            let begin = Instant::now();
            while children.living() > 0 {
                assert!(begin.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
