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
use crate::node::view::Inner;
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

    /// How many leaves so many records may be in, of which the first is anywhere in its leaf.
    fn leaves_of(&self, records: usize) -> usize {
        match self.0.load(Ordering::Relaxed) {
            0 => 1,
            density => 1 + records.saturating_sub(1).div_ceil(density),
        }
    }
}

/// What a scan knows of the leaves that it has not come to.
pub(crate) struct Ahead<'p> {
    density: &'p Density,
    /// How many more records the caller expects; none when he has not said, or has had them.
    expected: Option<usize>,
    /// How many leaves have been read that the scan has not come to.
    fetched: usize,
    /// How many to read next, of a range of which nothing is known.
    next: usize,
}

impl<'p> Ahead<'p> {
    pub fn new(density: &'p Density) -> Self {
        Self { density, expected: None, fetched: 0, next: 1 }
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
        self.fetched = self.fetched.saturating_sub(1);
        self.density.saw(count);
        self.expected = self.expected.and_then(|left| left.checked_sub(returned)).filter(|left| *left > 0);
    }

    /// Before the scan comes to child `at` of `parent`: reads it, with those after it that it will come to.
    pub fn gather(
        &mut self,
        tree: Handle<'_>,
        parent: &Optimistic<'_>,
        at: usize,
        direction: Direction,
        end: &Bound<Key>,
    ) {
        if self.fetched > 0 {
            return;
        }
        let inner = parent.view().inner();
        let count =
            self.count(last(inner, direction, end).abs_diff(at) + 1, !matches!(end, Bound::Unbounded));
        self.next = (2 * self.next).min(MOST);
        let mut pages = [PageId::NONE; MOST];
        for (step, page) in pages[..count].iter_mut().enumerate() {
            let child = if direction == Direction::Up { at + step } else { at.saturating_sub(step) };
            *page = PageId(inner.child(child));
        }
        // One alone comes with the descent.
        if count > 1 && parent.validate().is_ok() {
            tree.pool.fetch(&pages[..count]);
        }
        self.fetched = count;
    }

    /// How many leaves to read, of so many in the range that have the same parent.
    fn count(&self, in_range: usize, ends: bool) -> usize {
        let wanted = match self.expected {
            Some(records) => self.density.leaves_of(records),
            // A short range is read to its end.
            None if ends && in_range <= MOST => in_range,
            None => self.next,
        };
        wanted.min(in_range).clamp(1, MOST)
    }
}

/// The last child that a range has in a node.
fn last(inner: Inner<'_>, direction: Direction, end: &Bound<Key>) -> usize {
    match (direction, end) {
        (Direction::Up, Bound::Unbounded) => inner.count(),
        (Direction::Down, Bound::Unbounded) => 0,
        (Direction::Up, Bound::Excluded(key)) => inner.position_before(Some(key)),
        (_, Bound::Included(key) | Bound::Excluded(key)) => inner.position(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_decides_and_nothing_is_known_at_first() {
        let density = Density::default();
        let mut ahead = Ahead::new(&density);
        assert_eq!((ahead.count(100, false), ahead.count(100, true), ahead.count(5, true)), (1, 1, 5));
        ahead.expect(50);
        assert_eq!(ahead.count(100, false), 1, "nobody has seen a leaf");
        ahead.come(20, 10);
        // 40 are left, which may begin and end in the middle of leaves.
        assert_eq!((ahead.count(100, false), ahead.count(2, true)), (3, 2));
        ahead.come(20, 20);
        assert_eq!(ahead.count(100, false), 2);
        ahead.come(20, 20);
        assert_eq!(ahead.count(100, false), 1, "they have been had");
        ahead.expect(1000);
        assert_eq!(ahead.count(100, false), MOST);
    }

    #[test]
    fn density_follows_what_leaves_have() {
        let density = Density::default();
        assert_eq!(density.leaves_of(100), 1);
        density.saw(20);
        density.saw(22);
        assert_eq!(density.leaves_of(1), 1);
        assert_eq!(density.leaves_of(21), 2);
        assert_eq!(density.leaves_of(22), 3);
        density.saw(10);
        assert_eq!(density.leaves_of(22), 4);
    }
}
