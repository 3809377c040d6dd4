//! Read-ahead of scans: the number of leaves that a scan reads at once. Several reads at once cost little more than one. A leaf
//! that the scan never reaches is a wasted read.
//!
//! The count depends first on what the scan knows: the number of records that the caller expects, and the end of the
//! range. A range without both starts with one leaf. The count doubles each time the scan continues.

use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_bufpool::{Optimistic, PageId};

use crate::descend::Handle;
use crate::latch::Readable;
use crate::node::Key;
use crate::node::view::Page;
use crate::scan::Direction;

/// The maximum number of leaves that are read at once.
const MOST: usize = 8;

/// The approximate number of records in a leaf of a tree: the value of the latest scan, 0 before the first. Any thread
/// may write it.
#[derive(Debug, Default)]
pub(crate) struct Density(AtomicUsize);

impl Density {
    /// Notes that a leaf has this number of records.
    fn saw(&self, records: usize) {
        let old = self.0.load(Ordering::Relaxed);
        // Small differences are not stored, so that the cache line stays shared between cores.
        if old.abs_diff(records) > old / 4 {
            self.0.store(records, Ordering::Relaxed);
        }
    }

    /// Number of leaves that contain this number of records, if the first record is the first of its leaf.
    fn leaves_of(&self, records: usize) -> Option<usize> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            density => Some(records.div_ceil(density)),
        }
    }
}

/// The knowledge of a scan about the leaves that it has not reached.
pub(crate) struct Ahead<'p> {
    density: &'p Density,
    /// Number of records that the caller still expects. None if the caller did not say, or has received them all.
    expected: Option<usize>,
    /// Whether the scan has reached a leaf. It begins anywhere in its first leaf, but enters each later one at the
    /// edge.
    begun: bool,
    /// Number of leaves that have been read ahead and that the scan has not reached.
    fetched: usize,
    /// Number of leaves to read next, for a range about which nothing is known.
    next: usize,
}

impl<'p> Ahead<'p> {
    pub fn new(density: &'p Density) -> Self {
        Self { density, expected: None, begun: false, fetched: 0, next: 1 }
    }

    /// Sets the approximate number of records that the caller will ask for from here on.
    pub fn expect(&mut self, records: usize) {
        self.expected = Some(records);
    }

    /// Records that the scan has left its last parent. The leaves that were read ahead for that parent do not count any more.
    pub fn restart(&mut self) {
        self.fetched = 0;
    }

    /// Records that the scan has reached a leaf of `count` records, and returns `returned` of them.
    pub fn come(&mut self, count: usize, returned: usize) {
        self.begun = true;
        self.fetched = self.fetched.saturating_sub(1);
        self.density.saw(count);
        self.expected = self.expected.and_then(|left| left.checked_sub(returned)).filter(|left| *left > 0);
    }

    /// Runs before the scan moves to child `at` of `parent`. If that child is a leaf, reads it together with the next
    /// leaves of the range.
    pub fn gather(
        &mut self,
        tree: Handle<'_>,
        parent: &Optimistic<'_>,
        at: usize,
        direction: Direction,
        end: &Bound<Key>,
    ) {
        let page = parent.view();
        if self.fetched > 0 || page.level() != 1 {
            return;
        }
        let last = last(page, direction, end);
        let behind = if direction == Direction::Up { last.checked_sub(at) } else { at.checked_sub(last) };
        let count = self.count(behind.unwrap_or(0) + 1, !matches!(end, Bound::Unbounded));
        let mut pages = [PageId::NONE; MOST];
        for (step, number) in pages[..count].iter_mut().enumerate() {
            let child = if direction == Direction::Up { at + step } else { at.saturating_sub(step) };
            *number = PageId(page.inner().child(child));
        }
        if parent.validate().is_err() {
            return;
        }
        // The descent itself reads a single leaf.
        if count > 1 {
            tree.pool.fetch(&pages[..count]);
        }
        self.fetched = count;
    }

    /// Number of leaves to read. `in_range` is the number of leaves in the range that have the same parent.
    fn count(&mut self, in_range: usize, ends: bool) -> usize {
        let known = match self.expected {
            Some(records) => self.density.leaves_of(records).map(|leaves| leaves + usize::from(!self.begun)),
            // A short range is read to its end.
            None => (ends && in_range <= MOST).then_some(in_range),
        };
        let wanted = known.unwrap_or_else(|| {
            let next = self.next;
            self.next = (2 * next).min(MOST);
            next
        });
        wanted.min(in_range).clamp(1, MOST)
    }
}

/// The last child of a node that is in a range. The key is searched only if it is between the node's fences.
fn last(page: Page<'_>, direction: Direction, end: &Bound<Key>) -> usize {
    let inner = page.inner();
    match (direction, end) {
        (Direction::Up, Bound::Included(key) | Bound::Excluded(key))
            if page.high().is_none_or(|high| high.compare(key).is_gt()) =>
        {
            if matches!(end, Bound::Included(_)) {
                inner.position(key)
            } else {
                inner.position_before(Some(key))
            }
        }
        (Direction::Up, _) => inner.count(),
        (Direction::Down, Bound::Included(key) | Bound::Excluded(key))
            if page.low().is_none_or(|low| low.compare(key).is_le()) =>
        {
            inner.position(key)
        }
        (Direction::Down, _) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_decides_and_nothing_is_known_at_first() {
        let density = Density::default();
        let mut ahead = Ahead::new(&density);
        assert_eq!((ahead.count(100, false), ahead.count(100, true), ahead.count(5, true)), (1, 2, 5));
        let mut ahead = Ahead::new(&density);
        ahead.expect(50);
        assert_eq!(ahead.count(100, false), 1, "nobody has seen a leaf");
        ahead.come(20, 10);
        // 40 records are left. They start at the beginning of the next leaf.
        assert_eq!((ahead.count(100, false), ahead.count(1, true)), (2, 1));
        ahead.come(20, 20);
        assert_eq!(ahead.count(100, false), 1);
        ahead.come(20, 20);
        // The expected records have been returned, and the scan continues.
        assert_eq!([(); 4].map(|()| ahead.count(100, false)), [2, 4, 8, 8]);
        let mut ahead = Ahead::new(&density);
        ahead.expect(40);
        // The records may begin in the middle of a leaf.
        assert_eq!(ahead.count(100, false), 3);
        ahead.expect(1000);
        assert_eq!(ahead.count(100, false), MOST);
    }

    #[test]
    fn density_follows_what_leaves_have() {
        let density = Density::default();
        assert_eq!(density.leaves_of(100), None);
        density.saw(20);
        density.saw(22);
        assert_eq!([1, 20, 21].map(|records| density.leaves_of(records)), [Some(1), Some(1), Some(2)]);
        density.saw(10);
        assert_eq!(density.leaves_of(22), Some(3));
    }
}
