//! How far ahead of a scan leaves are read: several at once cost little more than one, and each that nobody comes to is
//! wasted.
//!
//! What is known decides first: how many records the caller expects, and where the range ends. A range that is open and of
//! which nothing is known is read one leaf at first, and twice as many each time it goes on.

use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_bufpool::{Optimistic, PageId};

use crate::handle::Handle;
use crate::latch::Readable;
use crate::node::Key;
use crate::node::view::Page;
use crate::scan::Direction;

/// How many leaves are read at once at most.
const MOST: usize = 8;

/// About how many records a leaf of a tree has: what a scan found last, 0 before the first. Everybody may write it.
#[derive(Debug, Default)]
pub(crate) struct Density(AtomicUsize);

impl Density {
    /// A leaf has so many.
    fn saw(&self, records: usize) {
        let old = self.0.load(Ordering::Relaxed);
        // What hardly changes stays in everybody's cache.
        if old.abs_diff(records) > old / 4 {
            self.0.store(records, Ordering::Relaxed);
        }
    }

    /// How many leaves so many records are in, if the first of them is the first of its leaf.
    fn leaves_of(&self, records: usize) -> Option<usize> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            density => Some(records.div_ceil(density)),
        }
    }
}

/// What a scan knows of the leaves that it has not come to.
pub(crate) struct Ahead<'p> {
    density: &'p Density,
    /// How many more records the caller expects; none when he has not said, or has had them.
    expected: Option<usize>,
    /// Whether the scan has come to a leaf: it goes on at the edge of the next one, but begins anywhere.
    begun: bool,
    /// How many leaves have been read that the scan has not come to.
    fetched: usize,
    /// How many to read next, of a range of which nothing is known.
    next: usize,
}

impl<'p> Ahead<'p> {
    pub fn new(density: &'p Density) -> Self {
        Self { density, expected: None, begun: false, fetched: 0, next: 1 }
    }

    /// The caller will want about so many records from here on.
    pub fn expect(&mut self, records: usize) {
        self.expected = Some(records);
    }

    /// The scan has left the parent that it knew: what was read for it is not what comes.
    pub fn restart(&mut self) {
        self.fetched = 0;
    }

    /// The scan has come to a leaf of `count` records, of which it returns so many.
    pub fn come(&mut self, count: usize, returned: usize) {
        self.begun = true;
        self.fetched = self.fetched.saturating_sub(1);
        self.density.saw(count);
        self.expected = self.expected.and_then(|left| left.checked_sub(returned)).filter(|left| *left > 0);
    }

    /// Before the scan comes to child `at` of `parent`: if that is a leaf, reads it, with those after it that it will come to.
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
        // One alone comes with the descent.
        if count > 1 {
            tree.pool.fetch(&pages[..count]);
        }
        self.fetched = count;
    }

    /// How many leaves to read, of so many in the range that have the same parent.
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

/// The last child that a range has in a node. Keys are only looked for between the node's fences.
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
        // 40 are left, from the beginning of the next leaf on.
        assert_eq!((ahead.count(100, false), ahead.count(1, true)), (2, 1));
        ahead.come(20, 20);
        assert_eq!(ahead.count(100, false), 1);
        ahead.come(20, 20);
        // They have been had, and the scan goes on.
        assert_eq!([(); 4].map(|()| ahead.count(100, false)), [2, 4, 8, 8]);
        let mut ahead = Ahead::new(&density);
        ahead.expect(40);
        // They may begin in the middle of a leaf.
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
