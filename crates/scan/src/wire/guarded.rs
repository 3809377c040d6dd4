//! A descriptor that the rest of the process may close.
//!
//! This library runs in programs that close descriptors that they did not open, as daemons do when they start. The number may
//! then belong to another file, and a message must not get there. So the descriptor is checked before each use. A thread that
//! closes the descriptor between the check and the use is not noticed.
//!
//! A forked child has a copy of the descriptor, and could receive its parent's messages. So only the parent may use it.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bedplate_threads::forks::Process;
use rustix::fs::fstat;
use rustix::io::Errno;

/// The file of a descriptor: its device and its inode.
type Identity = (u64, u64);

/// The descriptor. Dropping this closes it, unless the number belongs to another file by then.
#[derive(Debug)]
pub struct Guarded {
    descriptor: ManuallyDrop<OwnedFd>,
    /// `None`: the kernel did not tell the identity, so the descriptor is not used.
    identity: Option<Identity>,
    process: Process,
}

fn identity(descriptor: BorrowedFd<'_>) -> Option<Identity> {
    fstat(descriptor).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl Guarded {
    /// The descriptor, if it is still open for the same file.
    ///
    /// # Errors
    /// `EBADF`: the descriptor is not open for that file any more, or this is a forked child.
    pub fn get(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if self.process.is_current() && self.is_it() { Ok(self.descriptor.as_fd()) } else { Err(Errno::BADF) }
    }

    /// Whether the descriptor is still open for the same file.
    fn is_it(&self) -> bool {
        self.identity.is_some() && identity(self.descriptor.as_fd()) == self.identity
    }

    /// The descriptor, without the check.
    pub fn number(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<OwnedFd> for Guarded {
    fn from(descriptor: OwnedFd) -> Self {
        let identity = identity(descriptor.as_fd());
        Self { descriptor: ManuallyDrop::new(descriptor), identity, process: Process::current() }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.is_it() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_number_that_became_another_file_s_is_neither_used_nor_closed() {
        let (one, other) = UnixStream::pair().unwrap();
        let guarded = Guarded::from(OwnedFd::from(one));
        let number = guarded.get().unwrap().as_raw_fd();
        // SAFETY: this is what a program does that reuses a number of another owner.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(guarded.get().unwrap_err(), Errno::BADF);
        drop(guarded);
        // SAFETY: the number belongs to this owner alone.
        let taken = unsafe { OwnedFd::from_raw_fd(number) };
        assert!(identity(taken.as_fd()).is_some(), "it is still open");
    }

    #[test]
    fn a_descriptor_is_closed_once() {
        let (one, other) = UnixStream::pair().unwrap();
        drop(Guarded::from(OwnedFd::from(one)));
        // The other end is closed.
        assert_eq!(std::io::Read::read(&mut { &other }, &mut [0]).unwrap(), 0);
    }
}
