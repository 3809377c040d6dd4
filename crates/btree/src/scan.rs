//! Reading ranges in the order of their keys, either way.
//!
//! A scan copies one leaf at a time and holds nothing between steps, so it disturbs nobody, and whoever changes the tree
//! meanwhile does not invalidate it. From a leaf it goes on at the leaf's fence: what is in the tree during the whole scan
//! is seen exactly once, in order, whatever splits and merges happen; what comes or goes meanwhile may be seen or not.
//!
//! While the parent of the last leaf is as it was, the next leaf is its next child, without a descent. How many leaves are
//! read at once is `ahead`'s business.

use std::cmp::Ordering;
use std::ops::Bound;

use bedplate_bufpool::{Optimistic, PageId};

use crate::ahead::{Ahead, Density};
use crate::error::{Attempt, Result, damaged};
use crate::handle::{Handle, Mode, retry};
use crate::latch::Readable;
use crate::node::view::{Bytes, Inner, Page, Value};
use crate::node::{Copied, Key, MAX_KEY};
use crate::read::Room;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// A range of records in the order of their keys, or in the opposite order.
///
/// It is no [`Iterator`], for what it returns is in itself; [`Range::owned`] makes one that copies.
#[must_use = "nothing is read before it is asked for"]
pub struct Range<'p> {
    tree: Handle<'p>,
    direction: Direction,
    /// Where to go on when the copy is used up.
    start: Bound<Key>,
    end: Bound<Key>,
    /// There may be more in the range than the copy has.
    more: bool,
    leaf: Box<Copied>,
    /// Slots of the copy that are still to be returned.
    from: usize,
    to: usize,
    /// Where the copied leaf is in its parent.
    parent: Option<(Optimistic<'p>, usize)>,
    ahead: Ahead<'p>,
    key: Key,
    value: Current,
    room: Option<Box<Room>>,
}

/// Where the value of the current record is.
enum Current {
    /// In this slot of the copy.
    Slot(usize),
    /// In the room.
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
            leaf: Copied::boxed(),
            from: 0,
            to: 0,
            parent: None,
            ahead: Ahead::new(density),
            key: Key::new(),
            value: Current::Room,
            room: None,
        }
    }

    /// Says about how many records will be asked for, as a query with a limit knows: about as many leaves are then read at
    /// once, up to eight. It changes nothing of what is returned, and more may be asked for.
    pub fn expecting(mut self, records: usize) -> Self {
        self.ahead.expect(records);
        self
    }

    /// The next key and its value, none at the end. After an error it can be asked again.
    pub fn try_next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if !self.advance()? {
            return Ok(None);
        }
        let value = match self.value {
            Current::Slot(at) => match Page::of(&self.leaf.0).leaf().value(at) {
                // SAFETY: the copy is not changed while it is borrowed.
                Value::Here(bytes) => unsafe { bytes.stable() },
                Value::Elsewhere(..) => &[],
            },
            Current::Room => self.room.as_ref().map_or(&[][..], |room| room.value()),
        };
        Ok(Some((&self.key, value)))
    }

    /// An iterator over copies.
    pub fn owned(self) -> Owned<'p> {
        Owned(self)
    }

    /// Makes the next record the current one, if there is one.
    fn advance(&mut self) -> Result<bool> {
        loop {
            while self.from < self.to {
                let at = if self.direction == Direction::Up { self.from } else { self.to - 1 };
                let leaf = Page::of(&self.leaf.0).leaf();
                leaf.key(at, &mut self.key);
                let there = match leaf.value(at) {
                    Value::Here(_) => {
                        self.value = Current::Slot(at);
                        true
                    }
                    // Its pages may be others' since the leaf was copied.
                    Value::Elsewhere(..) => {
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

    /// Copies the leaf where the scan goes on.
    fn load(&mut self) -> Result<()> {
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

    /// Copies the leaf after the copied one, if their parent is as it was.
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

    /// Whether the copy ends behind where the scan is, in its direction: in a damaged tree it would run in a circle.
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

    /// Finds out which slots of the copy are in the range, and where to go on.
    fn bound(&mut self) {
        let page = Page::of(&self.leaf.0);
        let leaf = page.leaf();
        (self.from, self.to, self.more) = (0, leaf.count(), false);
        // The first slot that is not below the key, or the first one above it.
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
                    // The end of the leaf may be the key, which is then not between its fences.
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

fn copy(leaf: &impl Readable, page: PageId, to: &mut Copied) -> Attempt<()> {
    leaf.view().copy_to(to);
    leaf.validate()?;
    if Page::of(&to.0).is_leaf() { Ok(()) } else { Err(damaged(page, "is no leaf").into()) }
}

fn key_of(bytes: Bytes<'_>) -> Key {
    let mut key = Key::new();
    bytes.push_to(&mut key);
    key
}

/// A bound longer than any key is between its beginning and what follows.
fn low_bound(bound: Bound<&[u8]>) -> Bound<Key> {
    match bound {
        Bound::Included(key) if key.len() > MAX_KEY => Bound::Excluded(Key::of(key)),
        bound => bound.map(Key::of),
    }
}

fn high_bound(bound: Bound<&[u8]>) -> Bound<Key> {
    match bound {
        Bound::Excluded(key) if key.len() > MAX_KEY => Bound::Included(Key::of(key)),
        bound => bound.map(Key::of),
    }
}

/// Whether no key can be in a range.
fn is_empty(low: Bound<&[u8]>, high: Bound<&[u8]>) -> bool {
    match (low, high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
    }
}
