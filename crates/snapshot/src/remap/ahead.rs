//! The tables of the next snapshot (the paper's tables copied ahead, 4.2).
//!
//! A third mapping of the file, private and never written to, takes the owner's place at a snapshot, with its tables. So who
//! reads afterwards need not fault. As it shares the file's pages with the owner's mapping, the kernel keeps it in step.

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use super::CHUNK;
use super::region::Region;
use crate::PAGE;

impl Region {
    /// Prepares a chunk from one on that is not, of what is shared, and gives the chunk to go on from, if there are more.
    pub(super) fn prepare_one(&self, from: usize) -> Option<usize> {
        let state = self.lock();
        if !state.private.is_empty() {
            return None;
        }
        let chunk = self.prepared.first(from..self.used().div_ceil(CHUNK), false)?;
        let pages = chunk * CHUNK..self.pages.min((chunk + 1) * CHUNK);
        let mut there = 0;
        // What nobody has touched the file may not have, and reading would make it.
        let prepared = self.entries.for_present(self.base, pages.clone(), |run| {
            there += run.len();
            let at = std::ptr::without_provenance_mut(self.ahead + run.start * PAGE);
            // SAFETY: faults pages in as if read.
            unsafe { madvise(at, run.len() * PAGE, Advice::LinuxPopulateRead) }
        });
        if prepared.is_ok() && there == pages.len() {
            self.prepared.insert(chunk..chunk + 1);
        }
        Some(chunk + 1)
    }

    /// Prepares all that can be, or as much as until some moment.
    pub(super) fn prepare_until(&self, is_over: impl Fn() -> bool) {
        let mut next = Some(0);
        while let Some(chunk) = next
            && !is_over()
        {
            next = self.prepare_one(chunk);
        }
    }

    /// Maps a part of it anew, without tables.
    pub(super) fn map_ahead(&self, part: Range<usize>) -> Result<(), Errno> {
        let at = std::ptr::without_provenance_mut(self.ahead + part.start * PAGE);
        let len = part.len() * PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces the region's own mapping.
        unsafe {
            mmap(at, len, access, flags, &self.file, (part.start * PAGE) as u64)?;
            // The first write would take down a huge page's entry, and with it 512 pages'.
            let _ = madvise(at, len, Advice::LinuxNoHugepage);
        }
        Ok(())
    }
}
