//! Range scans in key order, ascending or descending.
//!
//! A scan copies one leaf at a time and holds no page between steps. So it blocks no other thread, and changes of the
//! tree do not invalidate it. After a leaf, the scan continues at the leaf's fence. So it returns every record that is
//! in the tree during the whole scan exactly once and in order, despite splits and merges. It may or may not return a
//! record that is inserted or removed meanwhile.
//!
//! While the parent of the last leaf is unchanged, the next leaf is the parent's next child, without a descent.
//! `read_ahead` decides how many leaves are read at once.

use std::cmp::Ordering;
use std::ops::Bound;

use bedplate_bufpool::{Optimistic, PageId};

use crate::descend::{Handle, Mode, retry};
use crate::error::{Attempt, Result, damaged};
use crate::latch::Readable;
use crate::node::view::{Bytes, Inner, Page, Value};
use crate::node::{Key, LONGEST_KEY, PageBuf};
use crate::read::Room;
use crate::read_ahead::{Ahead, Density};

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// A range of records in ascending or descending order of their keys.
///
/// This is not an [`Iterator`], because the returned slices borrow from it. [`Range::owned`] makes an iterator over copies.
#[must_use = "nothing is read before it is asked for"]
pub struct Range<'p> {
    tree: Handle<'p>,
    direction: Direction,
    /// The bound at which the scan continues when the copied leaf is used up.
    start: Bound<Key>,
    end: Bound<Key>,
    /// Whether the range may have more records than the copied leaf.
    more: bool,
    leaf: PageBuf,
    /// The slots `from..to` of the copied leaf that are still to be returned.
    from: usize,
    to: usize,
    /// The parent of the copied leaf, and the leaf's position in it.
    parent: Option<(Optimistic<'p>, usize)>,
    ahead: Ahead<'p>,
    key: Key,
    /// Whether `key` is a key of the copied leaf, so that it begins with the prefix of the leaf's keys.
    has_prefix: bool,
    value: Current,
    room: Option<Box<Room>>,
}

/// The place of the value of the current record.
enum Current {
    /// At this offset of the copied leaf.
    Leaf { at: usize, len: usize },
    /// In `Range::room`.
    Room,
}

impl<'p> Range<'p> {
    pub(crate) fn new(
        tree: Handle<'p>,
        density: &'p Density,
        direction: Direction,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
    ) -> Self {
        let more = !is_empty(low, high);
        let (low, high) = (low_bound(low), high_bound(high));
        let (start, end) = if direction == Direction::Up { (low, high) } else { (high, low) };
        Self {
            tree,
            direction,
            start,
            end,
            more,
            leaf: PageBuf::new(tree.size()),
            from: 0,
            to: 0,
            parent: None,
            ahead: Ahead::new(density),
            key: Key::new(),
            has_prefix: false,
            value: Current::Room,
            room: None,
        }
    }

    /// Sets the number of records that the caller will ask for approximately, as a query with a limit does. The scan
    /// then reads about as many leaves at once as contain them, up to eight. This does not change the result, and the
    /// caller may ask for more records.
    pub fn expecting(mut self, records: usize) -> Self {
        self.ahead.expect(records);
        self
    }

    /// Returns the next key and its value, or none at the end. After an error, the caller may call this again.
    pub fn try_next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if !self.advance()? {
            return Ok(None);
        }
        let value = match self.value {
            // SAFETY: the copy does not change while it is borrowed.
            Current::Leaf { at, len } => unsafe { Page::of(&self.leaf.0).bytes(at, len).stable() },
            Current::Room => self.room.as_ref().map_or(&[][..], |room| room.value()),
        };
        Ok(Some((&self.key, value)))
    }

    /// Makes an iterator over copies of the records.
    pub fn owned(self) -> Owned<'p> {
        Owned(self)
    }

    /// Advances to the next record. Returns whether there is one.
    fn advance(&mut self) -> Result<bool> {
        loop {
            while self.from < self.to {
                let at = if self.direction == Direction::Up { self.from } else { self.to - 1 };
                let leaf = Page::of(&self.leaf.0).leaf();
                if self.has_prefix {
                    leaf.next_key(at, &mut self.key);
                } else {
                    leaf.key(at, &mut self.key);
                    self.has_prefix = true;
                }
                let there = match leaf.value(at) {
                    Value::Here(bytes) => {
                        self.value = Current::Leaf { at: bytes.offset(), len: bytes.len() };
                        true
                    }
                    // The overflow pages may have another use since the leaf was copied, so the value is read from the
                    // tree.
                    Value::Overflow(..) => {
                        let room = self.room.get_or_insert_with(|| Box::new(Room::new()));
                        self.value = Current::Room;
                        self.tree.get(&self.key, room)?
                    }
                };
                match self.direction {
                    Direction::Up => self.from += 1,
                    Direction::Down => self.to -= 1,
                }
                if there {
                    return Ok(true);
                }
            }
            if !self.more {
                return Ok(false);
            }
            self.load()?;
        }
    }

    /// Copies the leaf where the scan continues.
    fn load(&mut self) -> Result<()> {
        self.has_prefix = false;
        let page = if let Ok(page) = self.load_neighbour() {
            page
        } else {
            let (tree, leaf, ahead) = (self.tree, &mut self.leaf, &mut self.ahead);
            ahead.restart();
            let position = |inner: Inner<'_>| match (&self.start, self.direction) {
                (Bound::Unbounded, Direction::Up) => 0,
                (Bound::Unbounded, Direction::Down) => inner.position_before(None),
                (Bound::Excluded(key), Direction::Down) => inner.position_before(Some(key)),
                (Bound::Included(key) | Bound::Excluded(key), _) => inner.position(key),
            };
            let page;
            (page, self.parent) = retry(|mode| match mode {
                Mode::Optimistic => {
                    let gather = |parent: &Optimistic<'_>, at| {
                        ahead.gather(tree, parent, at, self.direction, &self.end);
                    };
                    let (found, parent) = tree.leaf_and_parent(position, gather)?;
                    copy(&found, found.page(), leaf)?;
                    Ok((found.page(), parent))
                }
                Mode::Latched => {
                    let found = tree.leaf_shared(&position)?;
                    copy(&found, found.page(), leaf)?;
                    Ok((found.page(), None))
                }
            })?;
            page
        };
        if !self.goes_on() {
            self.more = false;
            return Err(damaged(page, "has fences that a scan has passed"));
        }
        self.bound();
        self.ahead.come(Page::of(&self.leaf.0).leaf().count(), self.to - self.from);
        Ok(())
    }

    /// Copies the sibling after the copied leaf, if their parent is unchanged.
    fn load_neighbour(&mut self) -> Attempt<PageId> {
        let Some((parent, at)) = self.parent.take() else { return Err(bedplate_bufpool::Restart.into()) };
        let next = match self.direction {
            Direction::Up if at < parent.view().inner().count() => at + 1,
            Direction::Down if at > 0 => at - 1,
            _ => return Err(bedplate_bufpool::Restart.into()),
        };
        self.ahead.gather(self.tree, &parent, next, self.direction, &self.end);
        let leaf = self.tree.child(parent, next)?;
        copy(&leaf, leaf.page(), &mut self.leaf)?;
        self.parent = Some((parent, next));
        Ok(leaf.page())
    }

    /// Whether the copied leaf ends beyond the position of the scan, in its direction. If not, the scan of a damaged
    /// tree could run in a cycle.
    fn goes_on(&self) -> bool {
        let page = Page::of(&self.leaf.0);
        match (self.direction, &self.start) {
            (_, Bound::Unbounded) => true,
            (Direction::Up, Bound::Included(key) | Bound::Excluded(key)) => {
                page.high().is_none_or(|high| high.compare(key).is_gt())
            }
            (Direction::Down, Bound::Included(key)) => page.low().is_none_or(|low| low.compare(key).is_le()),
            (Direction::Down, Bound::Excluded(key)) => page.low().is_none_or(|low| low.compare(key).is_lt()),
        }
    }

    /// Determines which slots of the copied leaf are in the range, and where the scan continues.
    fn bound(&mut self) {
        let page = Page::of(&self.leaf.0);
        let leaf = page.leaf();
        (self.from, self.to, self.more) = (0, leaf.count(), false);
        // The first slot whose key is not below the given key, and the first slot whose key is above it.
        let not_below = |key: &Key| leaf.lower_bound(key).0;
        let above = |key: &Key| {
            let (at, found) = leaf.lower_bound(key);
            at + usize::from(found)
        };
        match self.direction {
            Direction::Up => {
                self.from = match &self.start {
                    Bound::Unbounded => 0,
                    Bound::Included(key) => not_below(key),
                    Bound::Excluded(key) => above(key),
                };
                let high = page.high();
                let order = |key: &Key| high.map_or(Ordering::Greater, |high| high.compare(key));
                match &self.end {
                    Bound::Included(end) if order(end).is_gt() => self.to = above(end),
                    Bound::Excluded(end) if order(end).is_gt() => self.to = not_below(end),
                    Bound::Excluded(end) if order(end).is_eq() => {}
                    _ => self.more = high.is_some(),
                }
                if let Some(high) = high {
                    self.start = Bound::Included(key_of(high));
                }
            }
            Direction::Down => {
                self.to = match &self.start {
                    Bound::Unbounded => leaf.count(),
                    Bound::Included(key) => above(key),
                    // The key may be the upper fence of the leaf. Then it is not between the fences, and a search would
                    // be wrong.
                    Bound::Excluded(key) if page.high().is_some_and(|high| high.compare(key).is_eq()) => {
                        leaf.count()
                    }
                    Bound::Excluded(key) => not_below(key),
                };
                let low = page.low();
                let order = |key: &Key| low.map_or(Ordering::Less, |low| low.compare(key));
                match &self.end {
                    Bound::Included(end) if order(end).is_le() => self.from = not_below(end),
                    Bound::Excluded(end) if order(end).is_le() => self.from = above(end),
                    _ => self.more = low.is_some(),
                }
                if let Some(low) = low {
                    self.start = Bound::Excluded(key_of(low));
                }
            }
        }
    }
}

/// The iterator of [`Range::owned`].
pub struct Owned<'p>(Range<'p>);

impl Iterator for Owned<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.try_next().map(|record| record.map(|(key, value)| (key.to_vec(), value.to_vec()))).transpose()
    }
}

fn copy(leaf: &impl Readable, page: PageId, to: &mut PageBuf) -> Attempt<()> {
    leaf.view().copy_leaf_to(to);
    leaf.validate()?;
    if Page::of(&to.0).is_leaf() { Ok(()) } else { Err(damaged(page, "is no leaf").into()) }
}

fn key_of(bytes: Bytes<'_>) -> Key {
    let mut key = Key::new();
    bytes.push_to(&mut key);
    key
}

/// A bound that is longer than any key lies between its truncation and the next key.
fn low_bound(bound: Bound<&[u8]>) -> Bound<Key> {
    match bound {
        Bound::Included(key) if key.len() > LONGEST_KEY => Bound::Excluded(Key::of(key)),
        bound => bound.map(Key::of),
    }
}

fn high_bound(bound: Bound<&[u8]>) -> Bound<Key> {
    match bound {
        Bound::Excluded(key) if key.len() > LONGEST_KEY => Bound::Included(Key::of(key)),
        bound => bound.map(Key::of),
    }
}

/// Whether no key can be in a range.
pub(crate) fn is_empty(low: Bound<&[u8]>, high: Bound<&[u8]>) -> bool {
    match (low, high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
    }
}
