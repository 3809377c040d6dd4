//! Cursors: positions among the records of a range.
//!
//! A cursor of the Rust interface borrows its transaction, which could not write as long as the cursor exists. A cursor here
//! is a position, and some records that were read ahead of it. Each time when none is left, the records after the
//! position are read through a cursor of the Rust interface that ends within the call.
//!
//! The number of records doubles each time, up to [`AHEAD_RECORDS`], so a scan costs little more than one long cursor. In a
//! write transaction the records that were read ahead count as read, though the program may not ask for them. A write of the
//! transaction to the same tree may change them, so they are forgotten then.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ops::Bound;

use bedplate_btree::store::NamedTree;

use crate::code::bp_store_code::*;
use crate::code::{Answer, Refusal, answer};
use crate::input::{Bounds, bounds, bp_store_bytes, bp_store_range, bytes};
use crate::limits::{AHEAD_BYTES, AHEAD_RECORDS, CURSORS};
use crate::transaction::{Session, Transaction, bp_store_transaction, session};
use crate::trees::bp_store_tree;

/// A position among the records of a range. It ends with its transaction, or when it is closed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store_cursor {
    /// The number of its transaction.
    pub transaction: u64,
    /// Its number in the transaction; never 0.
    pub number: u64,
}

/// The cursors of a transaction.
#[derive(Default)]
pub(crate) struct Cursors {
    /// The number of the cursor that was opened last. Numbers are not used again.
    last: u64,
    open: BTreeMap<u64, Cursor>,
}

impl Cursors {
    fn add(&mut self, cursor: Cursor) -> Result<u64, Refusal> {
        if self.open.len() >= CURSORS {
            return Err(Refusal::full("the transaction has as many cursors as it can have: close some"));
        }
        self.last += 1;
        self.open.insert(self.last, cursor);
        Ok(self.last)
    }

    /// The error of a number that no open cursor has.
    fn missing(&self, number: u64) -> Refusal {
        if number == 0 || number > self.last {
            return Refusal::new(BP_STORE_ERROR_HANDLE, "there never was such a cursor");
        }
        Refusal::new(BP_STORE_ERROR_CLOSED, "the cursor was closed")
    }

    /// Before the transaction writes to a tree.
    pub(crate) fn forget_ahead(&mut self, tree: bp_store_tree) {
        let of_tree = self.open.values_mut().filter(|cursor| cursor.number == tree.number);
        of_tree.for_each(Cursor::forget_ahead);
    }
}

/// Which way a cursor goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Next,
    Previous,
}

/// Where a cursor is.
enum Position {
    /// Before all records.
    First,
    /// Before the records from this key on.
    Before(Vec<u8>),
    /// At the current record.
    At,
    /// After all records.
    Last,
}

type Record = (Vec<u8>, Vec<u8>);

struct Cursor {
    tree: NamedTree,
    /// The number of the tree in the store.
    number: u64,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    position: Position,
    /// The key and the value that the program has been given.
    current: Record,
    /// Records after the position, in this direction.
    ahead: VecDeque<Record>,
    direction: Direction,
    /// How many records are read when none is ahead.
    count: usize,
}

impl Cursor {
    fn new(tree: NamedTree, number: u64, (low, high): Bounds) -> Self {
        Self {
            tree,
            number,
            low,
            high,
            position: Position::First,
            current: Record::default(),
            ahead: VecDeque::new(),
            direction: Direction::Next,
            count: 1,
        }
    }

    fn go(&mut self, position: Position) {
        self.forget_ahead();
        self.position = position;
    }

    fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.count = 1;
    }

    /// The records from the position on, in a direction, as bounds; none if the position is at the end.
    fn rest(&self, direction: Direction) -> Option<Bounds> {
        let (low, high) = (self.low.clone(), self.high.clone());
        Some(match (&self.position, direction) {
            (Position::First, Direction::Next) | (Position::Last, Direction::Previous) => (low, high),
            (Position::First, Direction::Previous) | (Position::Last, Direction::Next) => return None,
            (Position::At, Direction::Next) => (Bound::Excluded(self.current.0.clone()), high),
            (Position::At, Direction::Previous) => (low, Bound::Excluded(self.current.0.clone())),
            (Position::Before(key), Direction::Next) => match &low {
                Bound::Included(first) | Bound::Excluded(first) if key <= first => (low, high),
                _ => (Bound::Included(key.clone()), high),
            },
            (Position::Before(key), Direction::Previous) => match &high {
                Bound::Included(last) | Bound::Excluded(last) if key > last => (low, high),
                _ => (low, Bound::Excluded(key.clone())),
            },
        })
    }

    /// Reads records ahead.
    fn read(&mut self, transaction: &Transaction, direction: Direction) -> Result<(), Refusal> {
        if self.direction != direction {
            self.forget_ahead();
            self.direction = direction;
        }
        let Some(rest) = self.rest(direction) else { return Ok(()) };
        let tree = &self.tree;
        let records = match (transaction, direction) {
            (Transaction::Read(transaction), Direction::Next) => transaction.range(tree, rest),
            (Transaction::Read(transaction), Direction::Previous) => transaction.range_rev(tree, rest),
            (Transaction::Write(transaction), Direction::Next) => transaction.range(tree, rest),
            (Transaction::Write(transaction), Direction::Previous) => transaction.range_rev(tree, rest),
        }?;
        let mut bytes = 0;
        for record in records.take(self.count) {
            match record {
                Ok(record) => {
                    bytes += record.0.len() + record.1.len();
                    self.ahead.push_back(record);
                }
                // The records before the error are returned first. The next call finds the error again.
                Err(_) if !self.ahead.is_empty() => break,
                Err(error) => return Err(error.into()),
            }
            if bytes >= AHEAD_BYTES {
                break;
            }
        }
        self.count = (2 * self.count).min(AHEAD_RECORDS);
        Ok(())
    }

    /// Moves to the next record in a direction; says whether there is one. After an error the position is as before.
    fn step(&mut self, transaction: &Transaction, direction: Direction) -> Result<bool, Refusal> {
        if self.ahead.is_empty() || self.direction != direction {
            self.read(transaction, direction)?;
        }
        match self.ahead.pop_front() {
            Some(record) => {
                (self.position, self.current) = (Position::At, record);
                Ok(true)
            }
            None => {
                self.position = match direction {
                    Direction::Next => Position::Last,
                    Direction::Previous => Position::First,
                };
                Ok(false)
            }
        }
    }
}

/// Uses a cursor and its transaction.
fn using(
    cursor: bp_store_cursor,
    work: impl FnOnce(&mut Cursor, &Transaction) -> Result<bool, Refusal>,
) -> Answer {
    let mut session = session(bp_store_transaction { handle: cursor.transaction })?;
    let Session { transaction, cursors, .. } = &mut *session;
    match cursors.open.get_mut(&cursor.number) {
        Some(found) => Ok(if work(found, transaction)? { BP_STORE_OK } else { BP_STORE_END }),
        None => Err(cursors.missing(cursor.number)),
    }
}

fn go(cursor: bp_store_cursor, position: Position) -> c_int {
    answer(|| {
        using(cursor, |cursor, _| {
            cursor.go(position);
            Ok(true)
        })
    })
}

/// # Safety
/// `key` and `value` are writable or NULL.
unsafe fn step(
    cursor: bp_store_cursor,
    direction: Direction,
    key: *mut bp_store_bytes,
    value: *mut bp_store_bytes,
) -> c_int {
    answer(|| {
        using(cursor, |cursor, transaction| {
            let found = cursor.step(transaction, direction)?;
            let nothing = bp_store_bytes { data: std::ptr::null(), len: 0 };
            for (place, bytes) in [(key, &cursor.current.0), (value, &cursor.current.1)] {
                if !place.is_null() {
                    // SAFETY: as the caller promised.
                    unsafe { place.write_unaligned(if found { bp_store_bytes::of(bytes) } else { nothing }) };
                }
            }
            Ok(found)
        })
    })
}

/// Opens a cursor over a range of a tree, before its first record; `range` NULL: all records. The bytes of the range are copied.
///
/// # Safety
/// `range` is NULL or readable, as its bytes are; `opened` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_open_cursor(
    transaction: bp_store_transaction,
    tree: bp_store_tree,
    range: *const bp_store_range,
    opened: *mut bp_store_cursor,
) -> c_int {
    answer(|| {
        if opened.is_null() {
            return Err(Refusal::null("no place for the cursor"));
        }
        // SAFETY: as the caller promised.
        let bounds = unsafe { bounds(range) }?;
        let mut session = session(transaction)?;
        let found = session.trees.find(tree)?.clone();
        let number = session.cursors.add(Cursor::new(found, tree.number, bounds))?;
        // SAFETY: as the caller promised.
        unsafe { opened.write_unaligned(bp_store_cursor { transaction: transaction.handle, number }) };
        Ok(BP_STORE_OK)
    })
}

/// Closes a cursor. The end of its transaction closes it, too.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_close_cursor(cursor: bp_store_cursor) -> c_int {
    answer(|| {
        let mut session = session(bp_store_transaction { handle: cursor.transaction })?;
        match session.cursors.open.remove(&cursor.number) {
            Some(_) => Ok(BP_STORE_OK),
            None => Err(session.cursors.missing(cursor.number)),
        }
    })
}

/// Moves to between the last key below `key` and the first key that is not below it. So bp_store_next() returns the record of
/// `key` if it is there.
///
/// # Safety
/// `key_len` bytes at `key` are readable, or `key` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_seek(cursor: bp_store_cursor, key: *const c_void, key_len: usize) -> c_int {
    answer(|| {
        // SAFETY: as the caller promised.
        let key = unsafe { bytes(key, key_len, "no key") }?.to_vec();
        using(cursor, |cursor, _| {
            cursor.go(Position::Before(key));
            Ok(true)
        })
    })
}

/// Moves before the first record of the range.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_seek_first(cursor: bp_store_cursor) -> c_int {
    go(cursor, Position::First)
}

/// Moves after the last record of the range.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_seek_last(cursor: bp_store_cursor) -> c_int {
    go(cursor, Position::Last)
}

/// Moves to the next record: BP_STORE_OK with its key and value, or BP_STORE_END, and both are {NULL, 0}; from the end,
/// bp_store_previous() returns the last record. `key` and `value` may be NULL. The bytes are the library's. They are valid until
/// the cursor is used again or closed, or the transaction ends.
///
/// The transaction's own writes are seen. A write transaction counts the records as read, and with them as many as the cursor has
/// returned, up to BP_STORE_AHEAD_MAX, which the cursor reads ahead.
///
/// # Safety
/// `key` and `value` are writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_next(
    cursor: bp_store_cursor,
    key: *mut bp_store_bytes,
    value: *mut bp_store_bytes,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe { step(cursor, Direction::Next, key, value) }
}

/// Moves to the record before; otherwise as bp_store_next(). At the beginning it is BP_STORE_END, and bp_store_next() then returns
/// the first record.
///
/// # Safety
/// As for bp_store_next().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_previous(
    cursor: bp_store_cursor,
    key: *mut bp_store_bytes,
    value: *mut bp_store_bytes,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe { step(cursor, Direction::Previous, key, value) }
}
