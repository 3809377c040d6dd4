//! Huge pages that were taken apart.
//!
//! Arming a page of a huge page's unmaps all of it, and from then on its pages are mapped one by one, each by a fault when
//! it is read next. So the worker maps them again, soon after.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::CHUNK;
use crate::PAGE;
use crate::region::{Table, now};

/// Nothing of the chunk was armed yet.
const WHOLE: u8 = 0;
/// Some of it was, and it is not mapped again.
const UNMAPPED: u8 = 1;
const MAPPED: u8 = 2;

/// The longest that a round maps again: it must not keep the worker from its other work.
const ROUND_NS: u64 = 30_000_000;

/// What became of each chunk, which is as large as a huge page and lies like one.
pub(super) struct Apart(Table<AtomicU8>);

impl Apart {
    pub(super) fn new(pages: usize) -> Result<Self, Errno> {
        Ok(Self(Table::new(pages.div_ceil(CHUNK), false)?))
    }

    /// Pages were armed.
    pub(super) fn armed(&self, pages: &Range<usize>) {
        for chunk in pages.start / CHUNK..pages.end.div_ceil(CHUNK) {
            let chunk = &self.0[chunk];
            if chunk.load(Ordering::Relaxed) == WHOLE {
                let _ = chunk.compare_exchange(WHOLE, UNMAPPED, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Maps chunks again, of the pages up to `used` from `base` on.
    pub(super) fn map_again(&self, base: usize, used: usize) {
        let begin = now();
        for chunk in 0..used / CHUNK {
            if self.0[chunk].load(Ordering::Relaxed) != UNMAPPED {
                continue;
            }
            self.0[chunk].store(MAPPED, Ordering::Relaxed);
            map(base + chunk * CHUNK * PAGE);
            if now() - begin > ROUND_NS {
                return;
            }
        }
    }
}

/// Maps a chunk for reading, if all of it is there: reading would make what is not.
fn map(start: usize) {
    let at = std::ptr::without_provenance_mut(start);
    let mut there = [0u8; CHUNK];
    // SAFETY: the chunk is in the region's mapping; a byte per page is written.
    let known = unsafe { libc::mincore(at, CHUNK * PAGE, there.as_mut_ptr()) } == 0;
    if known && there.iter().all(|page| page & 1 != 0) {
        // SAFETY: faults pages in as if read. Those for which it fails are faulted in one by one.
        let _ = unsafe { madvise(at, CHUNK * PAGE, Advice::LinuxPopulateRead) };
    }
}
