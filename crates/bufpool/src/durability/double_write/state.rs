//! The states of the area's regions. The rules are in the parent module's comment; nothing here does I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::area::{BATCHES, REGIONS, capacity};
use super::restore::Restored;
use crate::buffer::Buffer;
use crate::images::Images;
use crate::page::{Image, PageId};
use crate::page_size::PageSize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Free,
    Active,
    Kept,
}

pub(super) struct Region {
    pub status: Status,
    pub sequence: u64,
    /// The page of each copy; [`PageId::NONE`] if the copy is not live.
    pub pages: Vec<PageId>,
    /// The header and the copies. The thread of an active region has it.
    pub buffer: Option<Buffer>,
    /// Grows when a place of its pages is written or becomes doubtful, so that an earlier fsync does not count.
    pub changes: u64,
    /// Number of failed writes to it. Regions with fewer are preferred.
    pub errors: u64,
}

pub(super) struct State {
    /// The sequence number of the next batch.
    pub next: u64,
    pub regions: Vec<Region>,
    /// Pages that are not in their places, and the region of their live copy.
    pub unplaced: BTreeMap<PageId, usize>,
    /// Pages that are being written again.
    pub retried: BTreeSet<PageId>,
    /// Number of fsyncs that have failed.
    pub failures: u64,
    pub size: PageSize,
}

impl State {
    pub fn new(restored: Restored, size: PageSize) -> Self {
        let region = |_| Region {
            status: Status::Free,
            sequence: 0,
            pages: Vec::new(),
            buffer: None,
            changes: 0,
            errors: 0,
        };
        let mut state = Self {
            next: restored.next,
            regions: (0..REGIONS).map(region).collect(),
            unplaced: BTreeMap::new(),
            retried: BTreeSet::new(),
            failures: 0,
            size,
        };
        for copy in restored.unplaced {
            let region = &mut state.regions[copy.region];
            region.status = Status::Kept;
            region.sequence = copy.sequence;
            let buffer = region.buffer.get_or_insert_with(|| Buffer::new(size, 1 + capacity(copy.region)));
            region.pages.push(copy.page);
            buffer.put(region.pages.len(), Images::new(&copy.image, size));
            state.unplaced.insert(copy.page, copy.region);
        }
        state
    }

    /// The free region among these with the fewest write errors, or the least recently used among several such regions.
    pub fn find_free(&self, regions: Range<usize>) -> Option<usize> {
        let free = regions.filter(|index| self.regions[*index].status == Status::Free);
        free.min_by_key(|index| (self.regions[*index].errors, self.regions[*index].sequence))
    }

    /// Number of these regions that are free.
    pub fn count_free(&self, regions: Range<usize>) -> usize {
        self.regions[regions].iter().filter(|region| region.status == Status::Free).count()
    }

    /// Makes a free region the calling thread's.
    pub fn activate(&mut self, index: usize, sequence: u64, pages: &[PageId]) -> Buffer {
        let size = self.size;
        let region = &mut self.regions[index];
        debug_assert!(region.status == Status::Free && pages.len() <= capacity(index));
        region.status = Status::Active;
        region.sequence = sequence;
        region.pages.clear();
        region.pages.extend_from_slice(pages);
        region.buffer.take().unwrap_or_else(|| Buffer::new(size, 1 + capacity(index)))
    }

    /// Returns a region that has no live copies.
    pub fn free(&mut self, index: usize, buffer: Option<Buffer>) {
        let region = &mut self.regions[index];
        region.status = Status::Free;
        region.pages.clear();
        region.buffer = buffer;
    }

    /// Returns a region whose copies are live.
    pub fn keep(&mut self, index: usize, buffer: Buffer) {
        let region = &mut self.regions[index];
        region.status = Status::Kept;
        region.changes += 1;
        region.buffer = Some(buffer);
    }

    pub fn kept(&self) -> impl Iterator<Item = (usize, &Region)> {
        self.regions.iter().enumerate().filter(|(_, region)| region.status == Status::Kept)
    }

    pub fn has_active_batch(&self) -> bool {
        self.regions[..BATCHES].iter().any(|region| region.status == Status::Active)
    }

    /// Whether there is a kept batch region all of whose pages are in their places.
    pub fn fsync_frees_a_batch_region(&self) -> bool {
        self.kept().any(|(index, _)| index < BATCHES && !self.unplaced.values().any(|of| *of == index))
    }

    /// The live copy of a page in a kept region.
    pub fn image(&self, index: usize, page: PageId) -> Option<&Image> {
        let region = &self.regions[index];
        let at = region.pages.iter().position(|of| *of == page)?;
        region.buffer.as_ref().map(|buffer| buffer.image(1 + at))
    }

    /// The kept region that has the last copy of a page. The page need not be unplaced: storage may have lost it in an fsync
    /// that has not returned yet.
    pub fn newest_copy(&self, page: PageId) -> Option<usize> {
        self.unplaced.get(&page).copied().or_else(|| {
            let regions = self.kept().filter(|(_, region)| region.pages.contains(&page));
            regions.max_by_key(|(_, region)| region.sequence).map(|(index, _)| index)
        })
    }

    /// Records that the copies of an active region are durable, so that older copies of its pages are no longer live.
    pub fn supersede(&mut self, active: usize) {
        let pages = self.regions[active].pages.clone();
        for page in &pages {
            if let Some(region) = self.unplaced.get_mut(page) {
                *region = active;
            }
        }
        let kept: Vec<usize> = self.kept().map(|(index, _)| index).collect();
        for index in kept {
            self.retire(index, |page| !pages.contains(&page));
        }
    }

    /// Ends the lives of copies in a kept region, except those for which `is_live` returns true. Without any, the region is free.
    fn retire(&mut self, index: usize, is_live: impl Fn(PageId) -> bool) {
        let region = &mut self.regions[index];
        for page in &mut region.pages {
            if !is_live(*page) {
                *page = PageId::NONE;
            }
        }
        if region.pages.iter().all(|page| page.is_none()) {
            let buffer = region.buffer.take();
            self.free(index, buffer);
        }
    }

    /// Records that an fsync has succeeded that covers these regions with these numbers of changes.
    pub fn places_are_durable(&mut self, covered: &[(usize, u64)]) {
        for (index, changes) in covered.iter().copied() {
            let region = &self.regions[index];
            if region.status == Status::Kept && region.changes == changes {
                let unplaced: BTreeSet<PageId> =
                    self.unplaced.iter().filter(|(_, of)| **of == index).map(|(page, _)| *page).collect();
                self.retire(index, |page| unplaced.contains(&page));
            }
        }
    }

    /// Records that an fsync has failed: the places of all live copies may have their old content.
    pub fn fsync_failed(&mut self) {
        self.failures += 1;
        let mut kept: Vec<usize> = self.kept().map(|(index, _)| index).collect();
        // The newest copy of a page counts. A copy in a region for a single page may not be durable yet, so the copy of the
        // batch, which has the same number, counts if there is one.
        kept.sort_by_key(|index| (self.regions[*index].sequence, *index < BATCHES));
        for index in kept {
            self.doubt(index);
        }
    }

    /// The places of a kept region's live copies may have their old content.
    pub fn doubt(&mut self, index: usize) {
        let region = &mut self.regions[index];
        region.changes += 1;
        for page in region.pages.iter().filter(|page| !page.is_none()) {
            self.unplaced.insert(*page, index);
        }
    }

    /// Copies an unplaced page out, unless another thread writes it. Returns its region, and the number of fsyncs that have
    /// failed.
    pub fn begin_retry(&mut self, page: PageId, image: &mut Image) -> Option<(usize, u64)> {
        let index = *self.unplaced.get(&page)?;
        let is_active = |region: &Region| region.status == Status::Active && region.pages.contains(&page);
        if self.regions.iter().any(is_active) || self.retried.contains(&page) {
            return None;
        }
        image.copy_from_slice(self.image(index, page)?);
        self.retried.insert(page);
        Some((index, self.failures))
    }

    /// Records that an unplaced page has been written in its place. It stays unplaced if an fsync has failed since.
    pub fn placed_again(&mut self, page: PageId, index: usize, failures: u64) {
        if self.failures == failures && self.unplaced.get(&page) == Some(&index) {
            self.unplaced.remove(&page);
            self.regions[index].changes += 1;
        }
    }
}
