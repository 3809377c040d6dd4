//! A lease tells a reader in another process whether it still holds its ranges. It is one word of shared memory. The daemon
//! clears the word before it gives the reader's frames to other ranges.
//!
//! The reader checks the word after it has read from a frame. This check needs no connection, because the lease may have ended
//! with the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use crate::memory::{Access, Mapping};
use crate::{Error, Result};

fn word(mapping: &Mapping) -> &AtomicU32 {
    // SAFETY: the mapping is one page, which the kernel has filled with zeros. Both sides access it only as this word.
    unsafe { &*mapping.start().cast::<AtomicU32>() }
}

/// The daemon's side. The reader holds its ranges until this is dropped.
pub struct Lease {
    file: OwnedFd,
    mapping: Mapping,
}

impl Lease {
    /// Creates a lease that is held.
    pub fn new() -> Result<Self> {
        let file = memfd_create("bedplate-lease", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(Error::system("creating a lease"))?;
        let bytes = rustix::param::page_size();
        ftruncate(&file, bytes as u64).map_err(Error::system("sizing a lease"))?;
        let mapping = Mapping::of(&file, 0, bytes, Access::ReadWrite)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(Error::system("sealing a lease"))?;
        word(&mapping).store(1, Ordering::Relaxed);
        Ok(Self { file, mapping })
    }

    /// The memory file that the reader maps.
    pub fn lend(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        word(&self.mapping).store(0, Ordering::SeqCst);
    }
}

/// The reader's side.
pub struct LeaseView(Mapping);

impl LeaseView {
    /// Maps the memory file that the daemon lent.
    pub fn open(file: OwnedFd) -> Result<Self> {
        let bytes = rustix::param::page_size();
        let stat = fstat(file.as_fd()).map_err(Error::system("looking at a lease"))?;
        if stat.st_size != bytes as i64 {
            return Err(crate::wire::malformed("has a lease that is none"));
        }
        Ok(Self(Mapping::view(file, bytes)?))
    }

    /// Whether all data that the reader read from its ranges before this call belonged to these ranges.
    pub fn is_held(&self) -> bool {
        fence(Ordering::SeqCst);
        word(&self.0).load(Ordering::SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_held_until_it_is_dropped() {
        let lease = Lease::new().unwrap();
        let view = LeaseView::open(rustix::io::dup(lease.lend()).unwrap()).unwrap();
        assert!(view.is_held());
        drop(lease);
        assert!(!view.is_held());
        let file = memfd_create("empty", MemfdFlags::CLOEXEC).unwrap();
        assert!(LeaseView::open(file).is_err());
    }
}
