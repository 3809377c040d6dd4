//! An anonymous private mapping, unmapped when dropped.

use std::io;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::error::Error;

/// Zeroed memory at an address that the kernel chooses.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: the methods give out only addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory. Pages use no memory until they are touched. `what` names the purpose in errors.
    pub fn new(bytes: usize, what: &'static str) -> Result<Mapping, Error> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        match unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, both, flags) } {
            Ok(base) => Ok(Mapping { base: base.cast(), bytes }),
            Err(error) => Err(Error::Memory { what, source: io::Error::from(error) }),
        }
    }

    /// Removes all access rights from `bytes` at `offset`, so that an access there causes a signal.
    pub fn guard(&self, offset: usize, bytes: usize) -> Result<(), Error> {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: inside of the mapping; nothing is stored there.
        unsafe { mprotect(self.base.add(offset).cast(), bytes, MprotectFlags::empty()) }
            .map_err(|error| Error::Memory { what: "a guard page", source: io::Error::from(error) })
    }

    /// The first address of the mapping.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which its owner no longer uses. If unmapping fails, it stays
        // mapped.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
