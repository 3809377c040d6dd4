//! Sets of page numbers, with one bit per page. Any thread may change them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::mmap_box::MmapArray;
use super::words::AtomicU64;

const BITS: usize = 64;

/// A set of pages.
pub struct Pages {
    words: MmapArray<AtomicU64>,
}

impl Pages {
    pub fn new(pages: usize, for_children: bool) -> Result<Self, Errno> {
        Ok(Self { words: MmapArray::new(pages.div_ceil(BITS), for_children)? })
    }

    /// Address and length of the set's memory, which fault handlers touch.
    pub fn span(&self) -> (usize, usize) {
        (self.words.as_ptr() as usize, size_of_val(&*self.words))
    }

    pub fn contains(&self, page: usize) -> bool {
        self.words[page / BITS].load(Ordering::Acquire) >> (page % BITS) & 1 != 0
    }

    /// Adds pages. Returns the number of pages that were not in the set.
    pub fn insert(&self, pages: Range<usize>) -> usize {
        self.each_word(pages, |word, mask| mask & !word.fetch_or(mask, Ordering::AcqRel))
    }

    /// Removes pages. Returns the number of pages that were in the set.
    pub fn remove(&self, pages: Range<usize>) -> usize {
        self.each_word(pages, |word, mask| mask & word.fetch_and(!mask, Ordering::AcqRel))
    }

    fn each_word(&self, pages: Range<usize>, f: impl Fn(&AtomicU64, u64) -> u64) -> usize {
        let mut total = 0;
        let mut page = pages.start;
        while page < pages.end {
            let end = pages.end.min((page / BITS + 1) * BITS);
            let mask = (u64::MAX >> (BITS - (end - page))) << (page % BITS);
            total += f(&self.words[page / BITS], mask).count_ones() as usize;
            page = end;
        }
        total
    }

    /// The first page of the range that is in the set (`inside`) or not in the set.
    pub fn first(&self, pages: Range<usize>, inside: bool) -> Option<usize> {
        let mut page = pages.start;
        while page < pages.end {
            let word = self.words[page / BITS].load(Ordering::Acquire);
            let word = if inside { word } else { !word } >> (page % BITS);
            if word != 0 {
                let found = page + word.trailing_zeros() as usize;
                return (found < pages.end).then_some(found);
            }
            page = (page / BITS + 1) * BITS;
        }
        None
    }

    /// The first run of pages in the range that are in the set (`inside`) or not in the set.
    pub fn run(&self, pages: Range<usize>, inside: bool) -> Option<Range<usize>> {
        let start = self.first(pages.clone(), inside)?;
        Some(start..self.first(start..pages.end, !inside).unwrap_or(pages.end))
    }

    /// The lowest run of `count` pages, aligned to `align` pages and below `pages`, that are not in the set. No
    /// page from `used` on may be in the set.
    pub fn gap(&self, used: usize, pages: usize, count: usize, align: usize) -> Option<Range<usize>> {
        let mut at = 0;
        loop {
            // All pages from `used` on are free.
            let free = match self.run(at..used, false) {
                Some(free) if free.end < used => free,
                Some(free) => free.start..pages,
                None => used.max(at)..pages,
            };
            let start = free.start.next_multiple_of(align);
            let end = start.checked_add(count)?;
            if end <= free.end {
                return Some(start..end);
            }
            if free.end == pages {
                return None;
            }
            at = free.end;
        }
    }

    /// The next run in the range that begins and ends with pages in the set and has gaps of at most `gap` pages.
    pub fn run_with_gaps(&self, pages: Range<usize>, gap: usize) -> Option<Range<usize>> {
        let mut run = self.run(pages.clone(), true)?;
        while let Some(next) = self.run(run.end..pages.end.min(run.end + gap + 1), true) {
            run.end = self.first(next.start..pages.end, false).unwrap_or(pages.end);
        }
        Some(run)
    }
}
