//! How many pages a fault serves in memory that is written all over: policy only.
//!
//! A page that is kept with others costs a tenth of one that has a fault of its own. Where many of a chunk's pages have
//! been written since the snapshot began, others will be soon: each fault there keeps a block of pages, twice as
//! large after every few faults. This takes memory for pages that are not written after all, of which there may be so
//! many as are a small part of the region.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::io::Errno;

use super::CHUNK;
use crate::region::Table;

/// Faults in a chunk from one size of block to the next.
const STEP: u32 = 4;
/// Pages of the largest block.
const LARGEST: usize = 32;
/// The part of the pages in use that may be kept without a fault of their own, for a snapshot. It is enough for what a
/// store keeps about its values; memory that was not used before can be slow to write.
const PART: usize = 64;

const FAULT_BITS: u32 = 8;

/// Faults of chunks since the newest snapshot began.
pub struct Density {
    /// Per chunk the low bits of a snapshot's epoch, and the number of faults since it began.
    chunks: Table<AtomicU32>,
    /// Pages kept without a fault of their own since the newest snapshot began.
    extra: AtomicUsize,
}

impl Density {
    pub fn new(pages: usize) -> Result<Self, Errno> {
        Ok(Self { chunks: Table::new(pages.div_ceil(CHUNK), false)?, extra: AtomicUsize::new(0) })
    }

    /// A snapshot begins.
    pub fn begin(&self) {
        self.extra.store(0, Ordering::Relaxed);
    }

    /// The largest block that a fault may keep now, when so many pages are in use.
    pub fn most(&self, used: usize) -> usize {
        let left = (used / PART).saturating_sub(self.extra.load(Ordering::Relaxed));
        if left < LARGEST { 1 } else { LARGEST }
    }

    /// The block, of `most` pages at most, to serve with a fault on a page. Callers hold the chunk's latch.
    pub fn block(&self, page: usize, epoch: u32, most: usize) -> Range<usize> {
        let chunk = &self.chunks[page / CHUNK];
        let of_epoch = epoch << FAULT_BITS;
        let word = chunk.load(Ordering::Relaxed);
        let faults = if word >> FAULT_BITS << FAULT_BITS == of_epoch { word - of_epoch } else { 0 };
        chunk.store(of_epoch + (faults + 1).min((1 << FAULT_BITS) - 1), Ordering::Relaxed);
        let pages = 1 << (faults / STEP).min(most.ilog2());
        let start = page / pages * pages;
        start..start + pages
    }

    /// So many pages were kept with another one's fault.
    pub fn kept(&self, extra: usize) {
        self.extra.fetch_add(extra, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: usize = 100 * CHUNK;

    #[test]
    fn blocks_grow_with_the_faults_of_their_chunk() {
        let density = Density::new(USED).unwrap();
        let mut kept = [false; CHUNK];
        let mut faults = 0;
        // Pages all over the chunk.
        for page in (0..CHUNK).map(|n| n * 167 % CHUNK).chain(0..CHUNK) {
            if !kept[page] {
                let block = density.block(page, 1, LARGEST);
                assert!(block.contains(&page) && block.end <= CHUNK);
                kept[block].fill(true);
                faults += 1;
            }
        }
        assert!(faults < CHUNK / 8, "{faults}");
        assert_eq!(density.block(CHUNK, 1, LARGEST).len(), 1);
        assert_eq!(density.block(0, 2, LARGEST).len(), 1);
    }

    #[test]
    fn what_it_may_keep_is_limited() {
        let density = Density::new(USED).unwrap();
        assert_eq!(density.most(USED), LARGEST);
        density.kept(USED / PART);
        assert_eq!(density.most(USED), 1);
        density.begin();
        assert_eq!(density.most(USED), LARGEST);
        for _ in 0..1000 {
            density.block(0, 1, CHUNK);
        }
        assert_eq!(density.block(0, 1, CHUNK), 0..CHUNK);
        assert_eq!(density.block(7, 1, 1), 7..8);
    }
}
