//! Records the results of the operators of an execution, and checks whether they can be explained.
//!
//! The check is for strict serializability in the order of the commit timestamps. Some order of the transactions
//! must exist in which every result is right. In it a transaction that ended before another began comes first,
//! and writing transactions are in the order of their timestamps. The timestamps are 1, 2, 3 and so on without a
//! gap. A snapshot reads the newest version at or before its timestamp.

use std::collections::{BTreeMap, HashSet};

use crate::layout::*;

/// The operator of a step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// GET; `value` is its result.
    Get,
    /// SET of `value`.
    Set,
    /// DELETE.
    Del,
    /// Compare-and-set: from the expected value to `value`.
    Cas(u64),
}

/// A step of a transaction, with its result.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The operator.
    pub action: Action,
    /// The key that it used.
    pub key: u8,
    /// The value that was read or written; 0 = none.
    pub value: u64,
    /// The operator's status, not an Error state.
    pub status: u32,
    /// GET: the commit timestamp that came with the value.
    pub version: u64,
}

/// A transaction that took effect.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The event before the first operator.
    pub start: u64,
    /// The event after the last operator.
    pub end: u64,
    /// The commit timestamp; 0 when it wrote nothing.
    pub ts: u64,
    /// A snapshot's timestamp.
    pub snapshot: Option<u64>,
    /// The steps.
    pub steps: Vec<Step>,
}

type Keys = BTreeMap<u8, u64>;

impl Transaction {
    /// Whether the results are right on `keys`. Then `keys` becomes the state after the transaction.
    fn explains(&self, keys: &mut Keys) -> bool {
        for step in &self.steps {
            let now = keys.get(&step.key).copied();
            let (status, after) = match step.action {
                Action::Get => match now {
                    Some(value) if value == step.value => (KDB_OK, now),
                    Some(_) => return false,
                    None => (KDB_NOT_FOUND, None),
                },
                Action::Set => (KDB_OK, Some(step.value)),
                Action::Del => (if now.is_some() { KDB_OK } else { KDB_NOT_FOUND }, None),
                Action::Cas(expected) => match now {
                    None => (KDB_NOT_FOUND, None),
                    Some(value) if value == expected => (KDB_OK, Some(step.value)),
                    Some(_) => (KDB_MISMATCH, now),
                },
            };
            if status != step.status {
                return false;
            }
            match after {
                Some(value) => keys.insert(step.key, value),
                None => keys.remove(&step.key),
            };
        }
        true
    }
}

/// The transactions of an execution, in any order.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Those that took effect. A failed one must have had no effect, which the others' results show.
    pub transactions: Vec<Transaction>,
    /// Operators that ended in an Error state.
    pub errors: u64,
}

impl History {
    /// Panics unless the history is as the module requires; `clock` is the last timestamp.
    pub fn check(&self, clock: u64) {
        self.check_timestamps(clock);
        self.check_versions();
        if !self.is_serializable() {
            panic!("no serial order explains this history: {self:#?}");
        }
    }

    fn check_timestamps(&self, clock: u64) {
        let mut timestamps: Vec<u64> = self.transactions.iter().map(|t| t.ts).filter(|&ts| ts != 0).collect();
        timestamps.sort_unstable();
        let dense: Vec<u64> = (1..=clock).collect();
        assert_eq!(timestamps, dense, "the commit timestamps are not dense: {self:#?}");
    }

    /// The values of every key, by the timestamp from which they are valid.
    fn versions(&self) -> BTreeMap<u8, BTreeMap<u64, Option<u64>>> {
        let mut versions: BTreeMap<u8, BTreeMap<u64, Option<u64>>> = BTreeMap::new();
        for transaction in self.transactions.iter().filter(|t| t.ts != 0) {
            for step in &transaction.steps {
                let value = match step.action {
                    Action::Set | Action::Cas(_) if step.status == KDB_OK => Some(step.value),
                    Action::Del if step.status == KDB_OK => None,
                    _ => continue,
                };
                versions.entry(step.key).or_default().insert(transaction.ts, value);
            }
        }
        versions
    }

    /// Checks that snapshots read exactly the newest version at or before their timestamp, and that versions
    /// report their own.
    fn check_versions(&self) {
        let versions = self.versions();
        for transaction in &self.transactions {
            for step in transaction.steps.iter().filter(|step| step.action == Action::Get) {
                let of_key = versions.get(&step.key);
                if step.status == KDB_OK && step.version != 0 {
                    let written = of_key.and_then(|of_key| of_key.get(&step.version)).copied().flatten();
                    assert_eq!(written, Some(step.value), "{step:?} has another timestamp: {self:#?}");
                }
                if let Some(snapshot) = transaction.snapshot {
                    let visible = of_key.and_then(|of_key| of_key.range(..=snapshot).next_back());
                    let value = visible.and_then(|(_, value)| *value).unwrap_or(0);
                    assert_eq!(step.value, value, "the snapshot {snapshot} is not what it was: {self:#?}");
                }
            }
        }
    }

    fn is_serializable(&self) -> bool {
        assert!(self.transactions.len() <= 64, "the check is for small histories");
        self.place(0, &Keys::new(), 0, &mut HashSet::new())
    }

    /// Whether the transactions that are not in `placed` can follow those that are.
    fn place(&self, placed: u64, keys: &Keys, last_ts: u64, seen: &mut HashSet<(u64, Keys)>) -> bool {
        if placed.count_ones() as usize == self.transactions.len() {
            return true;
        }
        if !seen.insert((placed, keys.clone())) {
            return false;
        }
        let left = || self.transactions.iter().enumerate().filter(|(i, _)| placed & 1 << i == 0);
        let first_end = left().map(|(_, t)| t.end).min().unwrap_or(u64::MAX);
        for (i, transaction) in left() {
            if transaction.start > first_end || (transaction.ts != 0 && transaction.ts != last_ts + 1) {
                continue;
            }
            let mut after = keys.clone();
            let ts = transaction.ts.max(last_ts);
            if transaction.explains(&mut after) && self.place(placed | 1 << i, &after, ts, seen) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(start: u64, end: u64, ts: u64, action: Action, value: u64, status: u32) -> Transaction {
        let step = Step { action, key: b'a', value, status, version: 0 };
        Transaction { start, end, ts, snapshot: None, steps: vec![step] }
    }

    fn history(transactions: Vec<Transaction>) -> History {
        History { transactions, errors: 0 }
    }

    #[test]
    fn a_read_may_come_before_or_after_a_concurrent_write() {
        for (value, status) in [(0, KDB_NOT_FOUND), (7, KDB_OK)] {
            let get = one(2, 4, 0, Action::Get, value, status);
            history(vec![one(1, 3, 1, Action::Set, 7, KDB_OK), get]).check(1);
        }
    }

    #[test]
    #[should_panic(expected = "no serial order")]
    fn a_read_after_the_end_of_a_write_must_see_it() {
        let get = one(3, 4, 0, Action::Get, 0, KDB_NOT_FOUND);
        history(vec![one(1, 2, 1, Action::Set, 7, KDB_OK), get]).check(1);
    }

    #[test]
    #[should_panic(expected = "no serial order")]
    fn an_update_must_not_be_lost() {
        let update = |start, end, ts, from, to| {
            let steps = vec![
                Step { action: Action::Get, key: b'a', value: from, status: KDB_OK, version: 0 },
                Step { action: Action::Set, key: b'a', value: to, status: KDB_OK, version: 0 },
            ];
            Transaction { start, end, ts, snapshot: None, steps }
        };
        history(vec![one(1, 2, 1, Action::Set, 1, KDB_OK), update(3, 5, 2, 1, 2), update(4, 6, 3, 1, 3)])
            .check(3);
    }

    #[test]
    #[should_panic(expected = "not dense")]
    fn a_timestamp_must_not_be_left_out() {
        history(vec![one(1, 2, 2, Action::Set, 1, KDB_OK)]).check(2);
    }
}
