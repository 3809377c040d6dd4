//! Applies logged transactions to a database that no other session writes to yet.

use std::collections::HashSet;

use super::Session;
use crate::{LogTxn, Result};

/// [`crate::Database::replay`] with one session for all transactions.
pub struct Replayer {
    session: Session,
}

impl Drop for Replayer {
    fn drop(&mut self) {
        self.session.end_replay();
    }
}

impl Replayer {
    pub(crate) fn new(session: Session) -> Replayer {
        Replayer { session }
    }

    /// See [`crate::Database::replay`].
    pub fn replay(&mut self, txn: &LogTxn) -> Result<()> {
        if let [op] = &txn.ops[..] {
            return self.session.replay(op, txn.commit_ts);
        }
        // All changes of a transaction have one timestamp, so a key may only be changed once: the last wins.
        let mut done = HashSet::new();
        let last: Vec<_> = txn.ops.iter().rev().filter(|op| done.insert(op.key())).collect();
        last.into_iter().rev().try_for_each(|op| self.session.replay(op, txn.commit_ts))
    }
}
