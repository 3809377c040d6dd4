//! Addresses that only ring 0 uses. Linux maps nothing there, and there are no windows.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::{Error, Result};
use crate::paging::VirtRange;
use crate::process::Process;

/// A range of whole gigabytes in which Linux maps nothing. The page tables alone determine what ring 0 has there.
/// The range is released when the value is dropped.
#[derive(Debug)]
pub struct Reserved {
    process: &'static Process,
    range: VirtRange,
}

impl Reserved {
    /// Reserves a range. Fails if anything is mapped there, or if the range does not consist of whole windows of 1
    /// GiB.
    pub fn new(process: &'static Process, range: VirtRange) -> Result<Reserved> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping where there is none.
        unsafe { mmap_anonymous(range.start() as *mut _, range.bytes() as usize, ProtFlags::empty(), flags) }
            .map_err(|error| Error::Memory { what: "addresses of ring 0's own", source: error.into() })?;
        let reserved = Reserved { process, range };
        process.keep_private(range.start(), range.bytes())?;
        Ok(reserved)
    }

    /// The reserved range.
    pub fn range(&self) -> VirtRange {
        self.range
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let (address, bytes) = (self.range.start(), self.range.bytes());
        // If the range cannot be released, it stays reserved.
        if self.process.release_private(address, bytes).is_ok() {
            // SAFETY: the mapping made above, to which no page table leads any more.
            let _ = unsafe { munmap(address as *mut _, bytes as usize) };
        }
    }
}
