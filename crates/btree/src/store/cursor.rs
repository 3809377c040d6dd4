//! Reads of ranges at a snapshot, in both directions.
//!
//! There are two layers. [`Merge`] walks through the tree's range and the overlay's range together, in one direction, by the read
//! rule of `versions`: it reads a record of the tree, and then asks the overlay for the keys up to it. A [`Cursor`] merges the
//! writes of its own transaction into that, changes direction, and seeks. It adds the ranges that were read to the read set of
//! the transaction.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::ops::Bound;

use super::error::Result;
use super::read_set::{ReadSet, as_slice};
use super::transaction::Snapshot;
use super::trees::Entry;
use super::write_set::Writes;
use crate::scan::{Direction, Range, is_empty};

type Pair = (Vec<u8>, Vec<u8>);
type KeyBound = Bound<Vec<u8>>;

/// The snapshot and the tree of a cursor, and the sets of its transaction.
#[derive(Clone, Copy)]
pub(crate) struct Source<'t> {
    pub snapshot: &'t Snapshot<'t>,
    pub entry: &'t Entry,
    pub writes: Option<&'t Writes>,
    pub reads: Option<&'t RefCell<ReadSet>>,
}

/// The part of a range from a position on, in a direction, as a range of keys.
fn range<'b>(
    direction: Direction,
    from: &'b KeyBound,
    to: &'b KeyBound,
) -> (Bound<&'b [u8]>, Bound<&'b [u8]>) {
    match direction {
        Direction::Up => (as_slice(from), as_slice(to)),
        Direction::Down => (as_slice(to), as_slice(from)),
    }
}

/// The records of a snapshot, in one direction.
struct Merge<'t> {
    source: Source<'t>,
    direction: Direction,
    scan: Range<'t>,
    /// The record that the scan returned last and that has not been returned yet; none at the end of the scan.
    pending: Option<Option<Pair>>,
    /// The beginning of the part that has not been returned yet.
    from: KeyBound,
    to: KeyBound,
}

impl<'t> Merge<'t> {
    fn new(
        source: Source<'t>,
        direction: Direction,
        from: KeyBound,
        to: KeyBound,
        expected: Option<usize>,
    ) -> Self {
        let (low, high) = range(direction, &from, &to);
        let tree = source.snapshot.store.handle(source.entry);
        let mut scan = Range::new(tree, &source.entry.density, direction, low, high);
        if let Some(records) = expected {
            scan = scan.expecting(records);
        }
        Self { source, direction, scan, pending: None, from, to }
    }

    /// Copies the next record into `found`. Returns whether there is one.
    fn next_into(&mut self, found: &mut Pair) -> Result<bool> {
        if self.pending.is_none() {
            let (versions, snapshot) = (&self.source.snapshot.store.versions, self.source.snapshot.timestamp);
            match self.scan.try_next()? {
                // The tree was read before `newest` was loaded. So the snapshot sees the tree's records up to this one.
                Some((key, value)) if versions.is_newest(snapshot) => {
                    assign(&mut found.0, key);
                    assign(&mut found.1, value);
                    exclude(&mut self.from, key);
                    return Ok(true);
                }
                record => self.pending = Some(record.map(|(key, value)| (key.to_vec(), value.to_vec()))),
            }
        }
        let next = self.next_merged()?;
        let is_there = next.is_some();
        if let Some(record) = next {
            *found = record;
        }
        Ok(is_there)
    }

    /// Returns the next record when the overlay may have entries.
    fn next_merged(&mut self) -> Result<Option<Pair>> {
        loop {
            let pending = match self.pending.take() {
                Some(pending) => pending,
                None => self.scan.try_next()?.map(|(key, value)| (key.to_vec(), value.to_vec())),
            };
            let (versions, tree) = (&self.source.snapshot.store.versions, self.source.entry.id);
            let end = pending.as_ref().map(|(key, _)| Bound::Included(key.clone()));
            let range = range(self.direction, &self.from, end.as_ref().unwrap_or(&self.to));
            let Some((key, old)) =
                versions.first(tree, range, self.direction, self.source.snapshot.timestamp)?
            else {
                match &pending {
                    Some((key, _)) => exclude(&mut self.from, key),
                    None => self.pending = Some(None),
                }
                return Ok(pending);
            };
            // The overlay's value replaces that of the tree.
            let is_same = pending.as_ref().is_some_and(|(of_tree, _)| **of_tree == *key);
            self.pending = if is_same { None } else { Some(pending) };
            exclude(&mut self.from, &key);
            if let Some(old) = old {
                return Ok(Some((key.to_vec(), old.to_vec())));
            }
        }
    }
}

/// Overwrites a buffer and reuses its memory.
fn assign(buffer: &mut Vec<u8>, bytes: &[u8]) {
    buffer.clear();
    buffer.extend_from_slice(bytes);
}

/// Makes a range begin after a key.
fn exclude(bound: &mut KeyBound, key: &[u8]) {
    match bound {
        Bound::Excluded(buffer) => assign(buffer, key),
        bound => *bound = Bound::Excluded(key.to_vec()),
    }
}

/// A merge, with the writes of its own transaction.
struct Walk<'t> {
    merge: Merge<'t>,
    /// The record that the merge returned last and that has not been returned yet; none at the end of the merge.
    peeked: Option<Option<Pair>>,
    /// The range of the read set that this walk extends.
    remembered: Option<usize>,
}

impl<'t> Walk<'t> {
    /// Whether the transaction has no sets, so that all records come from the merge.
    fn is_alone(&self) -> bool {
        self.merge.source.writes.is_none() && self.merge.source.reads.is_none()
    }

    /// Copies the next record after `from`, the position of the walk, into `found`. Returns whether there is one.
    fn next_into(&mut self, from: KeyBound, found: &mut Pair) -> Result<bool> {
        match self.merge.source.writes {
            Some(writes) if !writes.is_empty() => self.next_written(writes, from, found),
            _ => self.merge.next_into(found),
        }
    }

    /// Adds to the read set the range from `from` to the record that was found, or else to the end.
    fn remember(&mut self, from: KeyBound, found: Option<&Vec<u8>>) -> Result<()> {
        let Some(reads) = self.merge.source.reads else { return Ok(()) };
        let until = found.map_or_else(|| self.merge.to.clone(), |key| Bound::Included(key.clone()));
        let is_up = self.merge.direction == Direction::Up;
        let mut reads = reads.borrow_mut();
        match self.remembered {
            Some(range) => reads.extend(range, until, is_up),
            None => {
                let (low, high) = if is_up { (from, until) } else { (until, from) };
                self.remembered = Some(reads.range(self.merge.source.entry.id, low, high)?);
                Ok(())
            }
        }
    }

    /// Does the same as [`Walk::next_into`] when the transaction has written something.
    fn next_written(&mut self, writes: &Writes, mut from: KeyBound, found: &mut Pair) -> Result<bool> {
        let direction = self.merge.direction;
        loop {
            let peeked = match self.peeked.take() {
                Some(peeked) => peeked,
                None => {
                    let mut record = Pair::default();
                    self.merge.next_into(&mut record)?.then_some(record)
                }
            };
            let range = range(direction, &from, &self.merge.to);
            let written = if is_empty(range.0, range.1) {
                None
            } else {
                let mut writes = writes.range::<[u8], _>(range);
                if direction == Direction::Up { writes.next() } else { writes.next_back() }
            };
            // The first of the two in the direction comes next. If both have the same key, the transaction's write replaces the
            // record.
            let order = match (&written, &peeked) {
                (None, _) => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
                (Some((key, _)), Some((of_snapshot, _))) => {
                    let order = (***key).cmp(of_snapshot);
                    if direction == Direction::Up { order } else { order.reverse() }
                }
            };
            if order.is_gt() {
                let is_there = peeked.is_some();
                match peeked {
                    Some(record) => *found = record,
                    None => self.peeked = Some(None),
                }
                return Ok(is_there);
            }
            if order.is_lt() {
                self.peeked = Some(peeked);
            }
            let Some((key, value)) = written else { continue };
            from = Bound::Excluded(key.to_vec());
            if let Some(value) = value {
                *found = (key.to_vec(), value.to_vec());
                return Ok(true);
            }
        }
    }
}

/// The position of a cursor.
enum Position {
    /// Before all records.
    First,
    /// Before the records from this key on.
    Before(Vec<u8>),
    /// At the record that the cursor has.
    At,
    /// After all records.
    Last,
}

/// A position among the records of a range, at a snapshot. It starts before the first record.
pub struct Cursor<'t> {
    source: Source<'t>,
    low: KeyBound,
    high: KeyBound,
    position: Position,
    /// Continues in one direction from the position.
    walk: Option<Walk<'t>>,
    /// The record that was returned last.
    record: Pair,
    /// A buffer for the next record, so that after an error the cursor stays at the previous record.
    next: Pair,
    expected: Option<usize>,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(source: Source<'t>, low: KeyBound, high: KeyBound) -> Self {
        let (record, next) = (Pair::default(), Pair::default());
        Self { source, low, high, position: Position::First, walk: None, record, next, expected: None }
    }

    /// Sets the approximate number of records that will be requested from the next move on, as a query with a limit knows. About
    /// as many leaves are then read together. This does not change the results, and the caller may request more.
    pub fn expecting(mut self, records: usize) -> Self {
        self.expected = Some(records);
        self
    }

    /// Moves to the next record and returns it. Returns none at the end; from there, [`Cursor::try_prev`] returns the last
    /// record.
    pub fn try_next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step(Direction::Up)
    }

    /// Moves to the previous record and returns it, or none at the beginning.
    pub fn try_prev(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step(Direction::Down)
    }

    /// Moves between the last key below `key` and the first key that is not.
    pub fn seek(&mut self, key: &[u8]) {
        self.go(Position::Before(key.to_vec()));
    }

    /// Moves before the first record.
    pub fn seek_first(&mut self) {
        self.go(Position::First);
    }

    /// Moves after the last record.
    pub fn seek_last(&mut self) {
        self.go(Position::Last);
    }

    fn go(&mut self, position: Position) {
        self.walk = None;
        self.position = position;
    }

    /// The bound where a step in a direction begins; none if there are no records in that direction.
    fn from(&self, direction: Direction) -> Option<KeyBound> {
        Some(match (&self.position, direction) {
            (Position::First, Direction::Up) => self.low.clone(),
            (Position::Last, Direction::Down) => self.high.clone(),
            (Position::First, Direction::Down) | (Position::Last, Direction::Up) => return None,
            (Position::At, _) => Bound::Excluded(self.record.0.clone()),
            (Position::Before(key), Direction::Up) => match &self.low {
                Bound::Included(low) | Bound::Excluded(low) if key <= low => self.low.clone(),
                _ => Bound::Included(key.clone()),
            },
            (Position::Before(key), Direction::Down) => match &self.high {
                Bound::Included(high) | Bound::Excluded(high) if key > high => self.high.clone(),
                _ => Bound::Excluded(key.clone()),
            },
        })
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(&[u8], &[u8])>> {
        // After an error, the next step begins at the position again, with a new walk.
        let found = self.find(direction).inspect_err(|_| self.walk = None)?;
        if !found {
            self.position = if direction == Direction::Up { Position::Last } else { Position::First };
            return Ok(None);
        }
        std::mem::swap(&mut self.record, &mut self.next);
        self.position = Position::At;
        Ok(Some((&self.record.0, &self.record.1)))
    }

    /// Copies the next record in a direction into `next`. Returns whether there is one.
    fn find(&mut self, direction: Direction) -> Result<bool> {
        // A step in the direction of the last one continues the walk. It needs the position only to merge the transaction's
        // writes and to note the range that it reads.
        if let (Position::At, Some(walk)) = (&self.position, &mut self.walk)
            && walk.merge.direction == direction
            && walk.is_alone()
        {
            return walk.merge.next_into(&mut self.next);
        }
        let Some(from) = self.from(direction) else { return Ok(false) };
        let to = if direction == Direction::Up { &self.high } else { &self.low };
        let walk = match &mut self.walk {
            Some(walk) if walk.merge.direction == direction => walk,
            walk => {
                let merge = Merge::new(self.source, direction, from.clone(), to.clone(), self.expected);
                walk.insert(Walk { merge, peeked: None, remembered: None })
            }
        };
        let found = walk.next_into(from.clone(), &mut self.next)?;
        walk.remember(from, found.then_some(&self.next.0))?;
        Ok(found)
    }
}

/// The records of a range in one direction, as copies.
pub struct Records<'t> {
    cursor: Cursor<'t>,
    direction: Direction,
}

impl<'t> Records<'t> {
    pub(crate) fn new(mut cursor: Cursor<'t>, direction: Direction) -> Self {
        if direction == Direction::Down {
            cursor.seek_last();
        }
        Self { cursor, direction }
    }
}

impl Records<'_> {
    /// The same as [`Cursor::expecting`].
    pub fn expecting(mut self, records: usize) -> Self {
        self.cursor.expected = Some(records);
        self
    }
}

impl Iterator for Records<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let owned = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
        self.cursor.step(self.direction).map(|record| record.map(owned)).transpose()
    }
}
