//! A set of pages: a bit for each page of a pool.

use bedplate_bufpool::PageId;

/// A set of pages. The caller bounds the numbers, because the set has a bit for every number below the largest one.
#[derive(Default)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    len: u64,
}

impl PageSet {
    /// Adds a page. Returns false if the set has it.
    pub fn insert(&mut self, PageId(page): PageId) -> bool {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        if word >= self.words.len() {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += u64::from(is_new);
        is_new
    }

    /// Whether the set has a page.
    pub fn contains(&self, PageId(page): PageId) -> bool {
        self.words.get((page / 64) as usize).is_some_and(|word| word & 1 << (page % 64) != 0)
    }

    /// Number of pages.
    pub fn len(&self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_set_once() {
        let mut set = PageSet::default();
        assert!(!set.contains(PageId(5)) && set.insert(PageId(5)) && !set.insert(PageId(5)));
        assert!(set.insert(PageId(1000)) && set.insert(PageId(63)) && set.insert(PageId(64)));
        let found: Vec<_> = (0..2000).filter(|page| set.contains(PageId(*page))).collect();
        assert_eq!(found, [5, 63, 64, 1000]);
        assert_eq!(set.len(), 4);
    }
}
