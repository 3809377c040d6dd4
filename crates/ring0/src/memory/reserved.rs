//! Addresses that only ring 0 has: kept from Linux, and from windows.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::{Error, Result};
use crate::paging::VirtRange;
use crate::process::Process;

/// A range of whole gigabytes where Linux has nothing, and what ring 0 has is up to the page tables. Given back when
/// dropped.
#[derive(Debug)]
pub struct Reserved {
    process: &'static Process,
    range: VirtRange,
}

impl Reserved {
    /// Keeps a range, unless something is mapped there.
    pub fn new(process: &'static Process, range: VirtRange) -> Result<Reserved> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping where there is none.
        unsafe { mmap_anonymous(range.start() as *mut _, range.bytes() as usize, ProtFlags::empty(), flags) }
            .map_err(|error| Error::Memory { what: "addresses of ring 0's own", source: error.into() })?;
        let reserved = Reserved { process, range };
        process.keep_private(range.start(), range.bytes())?;
        Ok(reserved)
    }

    /// The range.
    pub fn range(&self) -> VirtRange {
        self.range
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let (address, bytes) = (self.range.start(), self.range.bytes());
        // What cannot be given back stays reserved.
        if self.process.release_private(address, bytes).is_ok() {
            // SAFETY: the mapping made above, to which nothing leads any more.
            let _ = unsafe { munmap(address as *mut _, bytes as usize) };
        }
    }
}
