//! The accessible part of a region: all pages that were ever in use, rounded up.
//!
//! A region is larger than the part in use, and a hole in a memory file is a page like any other. A core dump and
//! `mlockall` would fill the whole region. They skip inaccessible pages.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags, ProtFlags, madvise, mprotect};

use crate::PAGE;

/// Number of pages that become accessible at a time.
const GROWTH: usize = 32 * 512;

/// The initial access rights.
pub const NONE: ProtFlags = ProtFlags::empty();

/// Excludes a mapping from core dumps. A failure is ignored.
pub fn exclude_from_dumps(at: usize, len: usize) {
    // SAFETY: this changes the contents of dumps, not the memory.
    let _ = unsafe { madvise(std::ptr::without_provenance_mut(at), len, Advice::LinuxDontDump) };
}

/// The pages of a region that can be accessed.
#[derive(Default)]
pub struct Accessible {
    /// The number of the first page that is not accessible.
    end: AtomicUsize,
}

impl Accessible {
    /// The number of the first page that is not accessible.
    pub fn end(&self) -> usize {
        self.end.load(Ordering::Relaxed)
    }

    /// Records that pages from `start` on are not accessible any more. No other thread may extend the accessible
    /// part meanwhile.
    pub fn take_back(&self, start: usize) {
        self.end.fetch_min(start, Ordering::Relaxed);
    }

    /// Makes all pages before `end` accessible, in a region of `pages` pages at `base`. Only one thread may call
    /// this at a time.
    ///
    /// # Errors
    /// The process has reached its limit of mappings.
    pub fn extend(&self, base: usize, pages: usize, end: usize) -> Result<(), Errno> {
        let start = self.end.load(Ordering::Relaxed);
        if end <= start {
            return Ok(());
        }
        let end = end.next_multiple_of(GROWTH).min(pages);
        let (at, len) = (std::ptr::without_provenance_mut(base + start * PAGE), (end - start) * PAGE);
        // SAFETY: the region's mapping; these pages are not in use.
        unsafe {
            mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE)?;
            let _ = madvise(at, len, Advice::LinuxDoDump);
        }
        self.end.store(end, Ordering::Relaxed);
        Ok(())
    }
}
