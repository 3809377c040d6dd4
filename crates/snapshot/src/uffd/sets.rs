//! A set of page numbers: a bit per page, changed by any thread.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::own::Table;

const BITS: usize = 64;

/// Which pages.
pub struct Pages {
    words: Table<AtomicU64>,
}

impl Pages {
    pub fn new(pages: usize, for_children: bool) -> Result<Self, Errno> {
        Ok(Self { words: Table::new(pages.div_ceil(BITS), for_children)? })
    }

    pub fn contains(&self, page: usize) -> bool {
        self.words[page / BITS].load(Ordering::Acquire) >> (page % BITS) & 1 != 0
    }

    /// Adds pages and says how many were new.
    pub fn insert(&self, pages: Range<usize>) -> usize {
        self.each_word(pages, |word, mask| mask & !word.fetch_or(mask, Ordering::AcqRel))
    }

    /// Removes pages and says how many there were.
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

    /// The first page of the range that is in it, or that is not.
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

    /// The next run of pages in the range that are in it, or that are not.
    pub fn run(&self, pages: Range<usize>, inside: bool) -> Option<Range<usize>> {
        let start = self.first(pages.clone(), inside)?;
        Some(start..self.first(start..pages.end, !inside).unwrap_or(pages.end))
    }

    /// The next run in the range that begins and ends with pages in it, with gaps of at most `gap` pages.
    pub fn run_with_gaps(&self, pages: Range<usize>, gap: usize) -> Option<Range<usize>> {
        let mut run = self.run(pages.clone(), true)?;
        while let Some(next) = self.run(run.end..pages.end.min(run.end + gap + 1), true) {
            run.end = self.first(next.start..pages.end, false).unwrap_or(pages.end);
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 1000;

    proptest! {
        #[test]
        fn a_set_is_a_set(changes in prop::collection::vec((0..PAGES, 1..300usize, any::<bool>()), 1..30),
                          from in 0..PAGES, gap in 0..40usize) {
            let (set, mut model) = (Pages::new(PAGES, true).unwrap(), BTreeSet::new());
            for (start, len, insert) in changes {
                let range = start..PAGES.min(start + len);
                let before = model.len();
                if insert {
                    let new = set.insert(range.clone());
                    model.extend(range);
                    prop_assert_eq!(new, model.len() - before);
                } else {
                    let gone = set.remove(range.clone());
                    model.retain(|page| !range.contains(page));
                    prop_assert_eq!(gone, before - model.len());
                }
            }
            prop_assert_eq!((0..PAGES).filter(|&page| set.contains(page)).count(), model.len());
            for inside in [true, false] {
                let first = (from..PAGES).find(|page| model.contains(page) == inside);
                prop_assert_eq!(set.first(from..PAGES, inside), first);
                let run = first.map(|start| start..(start..PAGES).find(|page| model.contains(page) != inside).unwrap_or(PAGES));
                prop_assert_eq!(set.run(from..PAGES, inside), run);
            }
            // Runs with gaps cover exactly the members, in order, and no gap is longer.
            let (mut at, mut covered) = (0, BTreeSet::new());
            while let Some(run) = set.run_with_gaps(at..PAGES, gap) {
                prop_assert!(model.contains(&run.start) && model.contains(&(run.end - 1)));
                let members: Vec<_> = run.clone().filter(|page| model.contains(page)).collect();
                prop_assert!(members.windows(2).all(|pair| pair[1] - pair[0] - 1 <= gap));
                covered.extend(members);
                at = run.end;
            }
            prop_assert_eq!(covered, model);
        }
    }
}
