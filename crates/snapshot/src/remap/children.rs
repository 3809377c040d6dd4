//! Detection of living processes that inherited the region: children, their descendants, and any other process with
//! its memory.
//!
//! All of them inherit a mapping of one file. Sealing the file against writes (`F_SEAL_WRITE`) fails as long as
//! such a mapping exists. This depends neither on descriptors, which a daemon closes, nor on process IDs.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::PAGE;
use crate::region::backing::memory_file;

/// The children that were forked since the last time when none was alive.
pub(super) struct Children {
    /// The file that they map.
    file: OwnedFd,
    /// The file that replaces `file` after it was sealed. It is created early, because the process may have no free
    /// descriptor later.
    next: Option<OwnedFd>,
    /// Number of children forked.
    forked: u64,
    /// A child was forked without an anchor. It counts as alive as long as this process.
    is_untracked: bool,
}

/// The mapping that a child inherits. The owner drops it after the fork.
pub(super) struct Anchor(usize);

impl Children {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { file: make()?, next: Some(make()?), forked: 0, is_untracked: false })
    }

    /// Prepares the fork of a child. If this fails, the child can still be forked, but it counts as alive forever.
    pub fn fork(&mut self) -> Option<Anchor> {
        let (none, flags) = (ProtFlags::empty(), MapFlags::SHARED);
        // SAFETY: a new inaccessible mapping at an address of the kernel's choice.
        let anchor = unsafe { mmap(std::ptr::null_mut(), PAGE, none, flags, &self.file, 0) };
        self.forked += 1;
        self.is_untracked |= anchor.is_err();
        anchor.ok().map(|at| Anchor(at as usize))
    }

    /// Number of children forked since [`living`](Self::living) last found that none was alive.
    pub fn forked(&self) -> u64 {
        self.forked
    }

    /// Number of children forked since the last time when none was alive, or 0 if none is alive. The caller must
    /// not have an [`Anchor`].
    pub fn living(&mut self) -> u64 {
        if self.forked == 0 || self.is_untracked {
            return self.forked;
        }
        let Some(next) = self.next.take().or_else(|| make().ok()) else { return self.forked };
        if fcntl_add_seals(&self.file, SealFlags::WRITE).is_err() {
            // Only a success proves that no child is alive.
            self.next = Some(next);
            return self.forked;
        }
        self.file = next;
        self.next = make().ok();
        self.forked = 0;
        0
    }
}

fn make() -> Result<OwnedFd, Errno> {
    let file = memory_file(c"bedplate-children", MemfdFlags::ALLOW_SEALING)?;
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

    /// A daemon may have closed the file, and its number may now belong to another file.
    #[test]
    fn another_file_in_the_place_of_theirs_does_not_end_them() {
        let mut children = Children::new().unwrap();
        drop(children.fork().unwrap());
        let other = std::fs::File::open("/dev/null").unwrap();
        rustix::io::dup2(&other, &mut children.file).unwrap();
        assert_eq!(children.living(), 1);
    }

    /// A grandchild that has closed all descriptors still counts as alive.
    #[test]
    fn they_live_until_the_last_process_has_ended() {
        let mut children = Children::new().unwrap();
        assert_eq!(children.living(), 0);
        for _ in 0..2 {
            let anchor = children.fork().unwrap();
            let (read, write) = rustix::pipe::pipe().unwrap();
            // SAFETY: the children only make system calls and exit.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    if libc::fork() == 0 {
                        libc::dup2(read.as_raw_fd(), 0);
                        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                        libc::read(0, (&raw mut *Box::leak(Box::new(0u8))).cast(), 1);
                    }
                    libc::_exit(0);
                }
                // Waits only for this child, because other tests at the same time wait for theirs.
                assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
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
