//! Transactions for stores that have single operations only: the B+tree, and the map of the tests.
//!
//! - Atomic in memory: a transaction that does not commit is undone, last change first, from the values that it
//!   replaced.
//! - Durable, if there is a [`Log`]: the transaction's changes are one record, appended while nobody else can have seen
//!   or overwritten them, and on disk before the transaction returns.
//! - Not isolated: the workload does not run transactions together that disagree.
//!
//! Locks, in their order: a stripe of [`Shared`], which keeps the order of single puts of a key the same in the store
//! and in the log; then the log's own.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, PoisonError};

use super::log::{Change, Log, Record};
use super::store::{Access, Body, Session, Transaction, Verdict, Visit};
use crate::Result;

/// Single operations of one thread on an ordered store, each atomic.
pub trait Plain {
    /// Puts a key's value into `value`; `false` if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;
    /// Inserts a key or replaces its value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Removes a key; `false` if it was not there.
    fn remove(&mut self, key: &[u8]) -> Result<bool>;
    /// Visits keys in ascending order, from the first that is not below `from`.
    fn scan(&mut self, from: &[u8], visit: Visit<'_>) -> Result<()>;
}

/// What the sessions of a store have in common.
pub struct Shared {
    log: Option<Log>,
    stripes: [Mutex<()>; 64],
}

impl Shared {
    /// With a log, writes are durable.
    pub fn new(log: Option<Log>) -> Self {
        Self { log, stripes: [const { Mutex::new(()) }; 64] }
    }

    fn stripe(&self, key: &[u8]) -> &Mutex<()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        &self.stripes[hash as usize % self.stripes.len()]
    }
}

/// A thread's session.
pub struct PlainSession<'s, P> {
    plain: P,
    shared: &'s Shared,
    undo: Undo,
    redo: Record,
}

impl<'s, P: Plain> PlainSession<'s, P> {
    /// A session over a thread's single operations.
    pub fn new(plain: P, shared: &'s Shared) -> Self {
        Self { plain, shared, undo: Undo::default(), redo: Record::default() }
    }
}

impl<P: Plain> Session for PlainSession<'_, P> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.plain.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let Some(log) = &self.shared.log else { return self.plain.put(key, value) };
        self.redo.clear();
        self.redo.push(Change::Put(key, value));
        let end = {
            let _order = self.shared.stripe(key).lock().unwrap_or_else(PoisonError::into_inner);
            self.plain.put(key, value)?;
            log.append(&self.redo)
        };
        log.make_durable(end)
    }

    fn scan(&mut self, from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.plain.scan(from, visit)
    }

    fn transaction(&mut self, access: Access, body: Body<'_>) -> Result<Verdict> {
        self.undo.clear();
        self.redo.clear();
        let log = self.shared.log.as_ref().filter(|_| access == Access::Write);
        let mut open = Open {
            plain: &mut self.plain,
            undo: &mut self.undo,
            redo: log.is_some().then_some(&mut self.redo),
            old: Vec::new(),
            new: Vec::new(),
        };
        let verdict = body(&mut open);
        if !matches!(verdict, Ok(Verdict::Commit)) {
            open.roll_back()?;
            return verdict;
        }
        if let Some(log) = log
            && !self.redo.is_empty()
        {
            log.make_durable(log.append(&self.redo))?;
        }
        verdict
    }
}

/// What a transaction replaced, in one buffer: keys and values, and where they are.
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
    redo: Option<&'o mut Record>,
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

    fn record(&mut self, change: Change<'_>) {
        if let Some(redo) = &mut self.redo {
            redo.push(change);
        }
    }
}

impl<P: Plain> Transaction for Open<'_, P> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.plain.get(key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.plain.put(key, value)?;
        self.undo.push(key, None);
        self.record(Change::Put(key, value));
        Ok(())
    }

    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        if !self.plain.get(key, &mut self.old)? {
            return Ok(false);
        }
        self.new.clone_from(&self.old);
        change(&mut self.new);
        self.plain.put(key, &self.new)?;
        self.undo.push(key, Some(&self.old));
        if let Some(redo) = &mut self.redo {
            redo.push(Change::Put(key, &self.new));
        }
        Ok(true)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        if !self.plain.get(key, &mut self.old)? {
            return Ok(false);
        }
        self.plain.remove(key)?;
        self.undo.push(key, Some(&self.old));
        self.record(Change::Remove(key));
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], visit: Visit<'_>) -> Result<()> {
        self.plain.scan(from, visit)
    }
}
