//! The format of histories.

use std::collections::HashMap;
use std::num::NonZeroU64;

/// A key of the database; the recorder chooses the numbers.
pub type Key = u32;

/// A value. Every write of a history has another one.
pub type Value = NonZeroU64;

/// A read or a write of a transaction that took effect within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The transaction read the key.
    Read {
        /// The key.
        key: Key,
        /// The value that the database returned; `None` = the key is absent.
        value: Option<Value>,
    },
    /// The transaction wrote or deleted the key.
    Write {
        /// The key.
        key: Key,
        /// The new value; `None` = the key was deleted.
        value: Option<Value>,
    },
}

/// How a transaction ended, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The database said that it has committed.
    Committed,
    /// It cannot have committed: the database said so, or the client never asked for it.
    Aborted,
    /// The client asked for the commit and got no answer.
    Unknown,
}

/// A transaction as its client saw it.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The kind of transaction, for reports.
    pub kind: &'static str,
    /// The client, for reports.
    pub client: u32,
    /// Time before the first request was sent. All clients use one clock, in nanoseconds for example.
    pub begin: u64,
    /// Time after the last reply was received. It has no meaning if the outcome is unknown.
    pub end: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The reads and writes, in their order. After an unknown outcome these are all writes and the reads whose
    /// results were received. A blind write among them counts only if somebody has read it.
    pub steps: Vec<Step>,
}

/// The transactions that clients ran on a database, as the clients saw them.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The values at the beginning. Other keys were absent.
    pub initial: HashMap<Key, Value>,
    /// The transactions, in any order.
    pub transactions: Vec<Transaction>,
}
