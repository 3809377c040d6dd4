//! Reads the page-table entries of the owner from the kernel: they show the pages of which the owner has copies, and the
//! protected pages.

use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::above_standard::open;
use crate::PAGE;

pub const PRESENT: u64 = 1 << 63;
pub const SWAPPED: u64 = 1 << 62;
pub const OF_A_FILE: u64 = 1 << 61;
const PROTECTED: u64 = 1 << 57;

/// Number of entries that are read at once.
const ASKED: usize = 1024;

/// `/proc/self/pagemap`.
pub struct Entries(OwnedFd);

impl Entries {
    pub fn open() -> Result<Self, Errno> {
        open(c"/proc/self/pagemap").map(Self)
    }

    /// Whether userfaultfd write-protects the page at an address.
    pub fn is_protected(&self, address: usize) -> Result<bool, Errno> {
        let mut entry = [0; 8];
        self.read(address, &mut entry)?;
        Ok(u64::from_ne_bytes(entry) & PROTECTED != 0)
    }

    fn read(&self, address: usize, entries: &mut [u8]) -> Result<(), Errno> {
        loop {
            match rustix::io::pread(&self.0, &mut *entries, (address / PAGE * 8) as u64) {
                Ok(n) if n == entries.len() => return Ok(()),
                Ok(_) => return Err(Errno::IO),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Calls `f` with each run of pages of which this process has its own copies. Runs are counted from the first
    /// of the `pages` private pages at `address`. None of these pages may be protected by userfaultfd.
    pub fn for_copies(
        &self,
        address: usize,
        pages: usize,
        mut f: impl FnMut(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let is_copy = |entry| entry & (PRESENT | SWAPPED) != 0 && entry & OF_A_FILE == 0;
        let mut run = 0..0;
        let mut buffer = [0; ASKED * 8];
        let mut at = 0;
        while at < pages {
            let entries = &mut buffer[..ASKED.min(pages - at) * 8];
            self.read(address + at * PAGE, entries)?;
            for entry in entries.as_chunks::<8>().0 {
                if is_copy(u64::from_ne_bytes(*entry)) {
                    run.end = at + 1;
                } else {
                    if !run.is_empty() {
                        f(run)?;
                    }
                    run = at + 1..at + 1;
                }
                at += 1;
            }
        }
        if run.is_empty() { Ok(()) } else { f(run) }
    }
}
