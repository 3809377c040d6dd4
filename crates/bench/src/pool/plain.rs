//! Transactions for stores that have single operations only: the B+tree, and the map of the tests.
//!
//! - Atomic in memory: a transaction that does not commit is undone, last change first, from the values that it
//!   replaced.
//! - Durable, if there is a [`Log`], to which the store tells its changes: the log has what would have to be taken back
//!   before each change, and the transaction's end, which is on disk before the transaction returns. A single put is
//!   one record of the store's, and needs no more.
//! - Not isolated: the workload does not run transactions together that disagree.

use std::sync::Arc;

use super::log::Log;
use super::store::{Access, Body, Expected, Session, Transaction, Verdict, Visit};
use crate::{Error, Result};

/// Single operations of one thread on an ordered store, each atomic.
pub trait Plain {
    /// Puts a key's value into `value`; `false` if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;
    /// Inserts a key or replaces its value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Removes a key; `false` if it was not there.
    fn remove(&mut self, key: &[u8]) -> Result<bool>;
    /// Like [`Session::scan`].
    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()>;
}

/// A thread's session.
pub struct PlainSession<'s, P> {
    plain: P,
    log: Option<&'s Log>,
    undo: Undo,
}

impl<'s, P: Plain> PlainSession<'s, P> {
    /// A session over a thread's single operations. With a log, which is the one that the store writes, changes are
    /// durable.
    pub fn new(plain: P, log: Option<&'s Arc<Log>>) -> Self {
        Self { plain, log: log.map(Arc::as_ref), undo: Undo::default() }
    }
}

impl<P: Plain> Session for PlainSession<'_, P> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.plain.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.plain.put(key, value)?;
        match self.log {
            Some(log) => durable(log, log.last_of_thread()),
            None => Ok(()),
        }
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        self.plain.scan(from, expected, visit)
    }

    fn transaction(&mut self, access: Access, body: Body<'_>) -> Result<Verdict> {
        self.undo.clear();
        let log = self.log.filter(|_| access == Access::Write).map(|log| (log, log.begin()));
        let (plain, undo) = (&mut self.plain, &mut self.undo);
        let mut open = Open { plain, undo, log, old: Vec::new(), new: Vec::new() };
        let verdict = body(&mut open);
        let changed = !open.undo.changes.is_empty();
        let commits = matches!(verdict, Ok(Verdict::Commit));
        if !commits {
            open.roll_back()?;
        }
        if let Some((log, transaction)) = log
            && changed
        {
            let end = log.end(transaction);
            // Should what was taken back not be on disk, it is taken back again.
            if commits {
                durable(log, end)?;
            }
        }
        verdict
    }
}

fn durable(log: &Log, up_to: u64) -> Result<()> {
    log.make_durable(up_to).map_err(Error::io("write the log"))
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
    /// And the transaction's number there.
    log: Option<(&'o Log, u64)>,
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

    /// Before a change.
    fn changes(&mut self, key: &[u8], was_there: bool) {
        let old = was_there.then_some(&self.old[..]);
        self.undo.push(key, old);
        if let Some((log, transaction)) = self.log {
            log.undo(transaction, key, old);
        }
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
