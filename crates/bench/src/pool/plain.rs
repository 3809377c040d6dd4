//! Transactions for stores that have single operations only: the bare B+tree, and the map of the tests.
//!
//! - Atomic in memory: a transaction that does not commit is undone, last change first, from the values that it replaced.
//! - Not durable.
//! - Not isolated: the workload must not run conflicting transactions at the same time.

use super::store::{Access, Body, Each, Expected, Session, Transaction, Verdict, Visit};
use crate::Result;

/// Single operations of one thread on an ordered store, each atomic.
pub trait Plain {
    /// Puts a key's value into `value`; `false` if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;
    /// Like [`Session::get_many`].
    fn get_many(&mut self, keys: &[&[u8]], each: Each<'_>) -> Result<()> {
        let mut value = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let found = self.get(key, &mut value)?;
            each(index, found.then_some(&value[..]));
        }
        Ok(())
    }
    /// Inserts a key or replaces its value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Like [`Session::put_many`], but each pair by itself.
    fn put_many(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.put(key, value))
    }
    /// Removes a key; `false` if it was not there.
    fn remove(&mut self, key: &[u8]) -> Result<bool>;
    /// Like [`Session::scan`].
    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()>;
}

/// A thread's session.
pub struct PlainSession<P> {
    plain: P,
    undo: Undo,
}

impl<P: Plain> PlainSession<P> {
    /// A session over a thread's single operations.
    pub fn new(plain: P) -> Self {
        Self { plain, undo: Undo::default() }
    }
}

impl<P: Plain> Session for PlainSession<P> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.plain.get(key, value)
    }

    fn get_many(&mut self, keys: &[&[u8]], each: Each<'_>) -> Result<()> {
        self.plain.get_many(keys, each)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.plain.put(key, value)
    }

    fn put_many(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        self.plain.put_many(pairs)
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        self.plain.scan(from, expected, visit)
    }

    fn transaction(&mut self, _: Access, body: Body<'_>) -> Result<Verdict> {
        self.undo.clear();
        let (plain, undo) = (&mut self.plain, &mut self.undo);
        let mut open = Open { plain, undo, old: Vec::new(), new: Vec::new() };
        let verdict = body(&mut open);
        if !matches!(verdict, Ok(Verdict::Commit)) {
            open.roll_back()?;
        }
        verdict
    }
}

/// The keys and values that a transaction has replaced, in one buffer, and their positions.
#[derive(Default)]
struct Undo {
    bytes: Vec<u8>,
    /// End of the key, and end of the old value, if there was one.
    changes: Vec<(usize, Option<usize>)>,
}

impl Undo {
    fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
    }

    fn push(&mut self, key: &[u8], old: Option<&[u8]>) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        let old_end = old.map(|old| {
            self.bytes.extend_from_slice(old);
            self.bytes.len()
        });
        self.changes.push((key_end, old_end));
    }
}

/// A transaction that is running.
struct Open<'o, P> {
    plain: &'o mut P,
    undo: &'o mut Undo,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl<P: Plain> Open<'_, P> {
    fn roll_back(&mut self) -> Result<()> {
        while let Some((key_end, old_end)) = self.undo.changes.pop() {
            let start = self.undo.changes.last().map_or(0, |(key_end, old_end)| old_end.unwrap_or(*key_end));
            let key = &self.undo.bytes[start..key_end];
            match old_end {
                Some(end) => self.plain.put(key, &self.undo.bytes[key_end..end])?,
                None => {
                    self.plain.remove(key)?;
                }
            }
        }
        Ok(())
    }

    /// Remembers the old value before a change.
    fn changes(&mut self, key: &[u8], was_there: bool) {
        self.undo.push(key, was_there.then_some(&self.old[..]));
    }
}

impl<P: Plain> Transaction for Open<'_, P> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.plain.get(key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.changes(key, false);
        self.plain.put(key, value)
    }

    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        if !self.plain.get(key, &mut self.old)? {
            return Ok(false);
        }
        self.new.clone_from(&self.old);
        change(&mut self.new);
        self.changes(key, true);
        self.plain.put(key, &self.new)?;
        Ok(true)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        if !self.plain.get(key, &mut self.old)? {
            return Ok(false);
        }
        self.changes(key, true);
        self.plain.remove(key)?;
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        self.plain.scan(from, expected, visit)
    }
}
