//! What the kernel tells of pages' entries in the owner's tables: whether it has copies of its own,
//! and what is protected.

use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::PAGE;

pub const PRESENT: u64 = 1 << 63;
pub const SWAPPED: u64 = 1 << 62;
pub const OF_A_FILE: u64 = 1 << 61;
const PROTECTED: u64 = 1 << 57;
/// Changes by itself.
const SOFT_DIRTY: u64 = 1 << 55;
/// Where a page is, for those who may know.
const PLACE: u64 = (1 << 55) - 1;

/// Pages that are asked for at once.
const ASKED: usize = 1024;

/// `/proc/self/pagemap`.
pub struct Entries {
    file: OwnedFd,
    /// Protected pages that are not there have an entry, too, which looks like one of a page that was swapped out. This is
    /// what it is.
    marker: u64,
}

impl Entries {
    pub fn open() -> Result<Self, Errno> {
        let file = rustix::fs::open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { file, marker: 0 })
    }

    /// Learns what a protected page looks like that is not there, from one.
    ///
    /// # Errors
    /// This user is not told enough to tell it from a page that was swapped out.
    pub fn learn(&mut self, address: usize) -> Result<(), Errno> {
        let mut entry = [0; 8];
        self.read(address, &mut entry)?;
        let entry = u64::from_ne_bytes(entry) & !SOFT_DIRTY;
        if entry & SWAPPED == 0 || entry & PLACE == 0 {
            return Err(Errno::PERM);
        }
        self.marker = entry;
        Ok(())
    }

    /// Whether the page at an address is write-protected by userfaultfd.
    pub fn is_protected(&self, address: usize) -> Result<bool, Errno> {
        let mut entry = [0; 8];
        self.read(address, &mut entry)?;
        Ok(u64::from_ne_bytes(entry) & PROTECTED != 0)
    }

    fn read(&self, address: usize, entries: &mut [u8]) -> Result<(), Errno> {
        loop {
            match rustix::io::pread(&self.file, &mut *entries, (address / PAGE * 8) as u64) {
                Ok(n) if n == entries.len() => return Ok(()),
                Ok(_) => return Err(Errno::IO),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn is_copy(&self, entry: u64) -> bool {
        entry & (PRESENT | SWAPPED) != 0 && entry & OF_A_FILE == 0 && entry & !SOFT_DIRTY != self.marker
    }

    /// Calls `f` with runs of private pages, in a region that begins at `base`, of which this process has a copy of its own.
    /// Only who has [learnt](Self::learn) can tell.
    pub fn for_copies(
        &self,
        base: usize,
        pages: Range<usize>,
        f: impl FnMut(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.for_those(base, pages, |entry| self.is_copy(entry), f)
    }

    /// The same with pages that are there.
    pub fn for_present(
        &self,
        base: usize,
        pages: Range<usize>,
        f: impl FnMut(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.for_those(base, pages, |entry| entry & PRESENT != 0, f)
    }

    fn for_those(
        &self,
        base: usize,
        pages: Range<usize>,
        which: impl Fn(u64) -> bool,
        mut f: impl FnMut(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut run = pages.start..pages.start;
        let mut buffer = [0; ASKED * 8];
        let mut at = pages.start;
        while at < pages.end {
            let entries = &mut buffer[..ASKED.min(pages.end - at) * 8];
            self.read(base + at * PAGE, entries)?;
            for entry in entries.as_chunks::<8>().0 {
                if which(u64::from_ne_bytes(*entry)) {
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
