//! How much of a region can be accessed: what was ever in use, rounded up.
//!
//! A region is larger than what is in use, and for a memory file a hole is a page like any other: a core dump and
//! `mlockall` would fill all of it. They pass over what cannot be accessed.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags, ProtFlags, madvise, mprotect};

use crate::PAGE;

/// Pages that become accessible at a time.
const GROWTH: usize = 32 * 512;

/// The rights to begin with.
pub const NONE: ProtFlags = ProtFlags::empty();

/// Keeps a mapping from core dumps. It is there all the same when that fails.
pub fn exclude_from_dumps(at: usize, len: usize) {
    // SAFETY: an address and a length: this changes what dumps have, not the memory.
    let _ = unsafe { madvise(std::ptr::without_provenance_mut(at), len, Advice::LinuxDontDump) };
}

/// The pages of a region that can be accessed.
#[derive(Default)]
pub struct Accessible {
    /// Pages before this one.
    end: AtomicUsize,
}

impl Accessible {
    /// The first page that cannot be accessed.
    pub fn end(&self) -> usize {
        self.end.load(Ordering::Relaxed)
    }

    /// Pages from one on cannot be accessed any more. No thread makes any accessible meanwhile.
    pub fn take_back(&self, start: usize) {
        self.end.fetch_min(start, Ordering::Relaxed);
    }

    /// Makes all pages of a region accessible up to one, of `pages` at `base`. One thread at a time.
    ///
    /// # Errors
    /// The process has as many mappings as it can have.
    pub fn extend(&self, base: usize, pages: usize, end: usize) -> Result<(), Errno> {
        let start = self.end.load(Ordering::Relaxed);
        if end <= start {
            return Ok(());
        }
        let end = end.next_multiple_of(GROWTH).min(pages);
        let (at, len) = (std::ptr::without_provenance_mut(base + start * PAGE), (end - start) * PAGE);
        // SAFETY: the region's mapping, of which these pages are not in use.
        unsafe {
            mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE)?;
            let _ = madvise(at, len, Advice::LinuxDoDump);
        }
        self.end.store(end, Ordering::Relaxed);
        Ok(())
    }
}
