//! The consumer of the log rings. It passes transactions on borrowed, so that bytes of a ring need not be copied
//! first.

use std::time::Duration;

use super::storage::LogRings;
use crate::{LogTxn, Op};

/// One change of a transaction, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpRef<'a> {
    /// See [`Op::Put`].
    Put {
        /// Key bytes, 1..=[`crate::KEY_MAX`].
        key: &'a [u8],
        /// Value bytes, at most [`crate::VALUE_MAX`].
        value: &'a [u8],
        /// Absolute expiry in milliseconds since the Unix epoch.
        expire_at_ms: Option<u64>,
    },
    /// See [`Op::Delete`].
    Delete {
        /// Key bytes.
        key: &'a [u8],
    },
}

impl<'a> From<&'a Op> for OpRef<'a> {
    fn from(op: &'a Op) -> Self {
        match op {
            Op::Put { key, value, expire_at_ms } => OpRef::Put { key, value, expire_at_ms: *expire_at_ms },
            Op::Delete { key } => OpRef::Delete { key },
        }
    }
}

impl From<OpRef<'_>> for Op {
    fn from(op: OpRef<'_>) -> Self {
        match op {
            OpRef::Put { key, value, expire_at_ms } => {
                Op::Put { key: key.to_vec(), value: value.to_vec(), expire_at_ms }
            }
            OpRef::Delete { key } => Op::Delete { key: key.to_vec() },
        }
    }
}

/// Receives transactions: `begin`, any number of `op`, `end`, then the next one.
pub trait TxnSink {
    /// A transaction with this commit timestamp follows; it is one above the previous one's.
    fn begin(&mut self, commit_ts: u64);
    /// The next change of the transaction.
    fn op(&mut self, op: OpRef<'_>);
    /// The transaction is complete.
    fn end(&mut self);
}

/// Consumer of the log rings. Only one exists per database at a time.
pub struct LogReader<'db> {
    rings: Box<dyn LogRings + 'db>,
}

impl<'db> LogReader<'db> {
    pub(super) fn new(rings: Box<dyn LogRings + 'db>) -> Self {
        LogReader { rings }
    }

    /// Waits for the log's notification (hash-map engine, every [`crate::Config::wal_notify_bytes`] bytes) or for
    /// the given time; returns whether there was a notification. The arena engine's producers send none.
    pub fn wait(&self, time: Duration) -> bool {
        self.rings.wait(time)
    }

    /// Hands over complete transactions, in timestamp order, until none is left or about `max_bytes` of keys and
    /// values were handed over. Ring space is free again when this returns, so the callee must keep the data that it
    /// needs. Returns the number of transactions.
    pub fn drain(&mut self, max_bytes: usize, f: &mut dyn FnMut(LogTxn)) -> usize {
        struct Collect<'a> {
            txn: LogTxn,
            f: &'a mut dyn FnMut(LogTxn),
        }
        impl TxnSink for Collect<'_> {
            fn begin(&mut self, commit_ts: u64) {
                self.txn = LogTxn { commit_ts, ops: Vec::new() };
            }
            fn op(&mut self, op: OpRef<'_>) {
                self.txn.ops.push(op.into());
            }
            fn end(&mut self) {
                let ops = std::mem::take(&mut self.txn.ops);
                (self.f)(LogTxn { commit_ts: self.txn.commit_ts, ops });
            }
        }
        self.drain_into(max_bytes, &mut Collect { txn: LogTxn { commit_ts: 0, ops: Vec::new() }, f })
    }

    /// [`LogReader::drain`] without copies: keys and values are borrowed from the rings.
    pub fn drain_into(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
        // The round that reads the end of a large transaction hands it over, so only a round that has read nothing
        // shows that nothing is left.
        loop {
            let before = self.rings.read_bytes();
            let count = self.rings.drain(max_bytes, sink);
            if count > 0 || self.rings.read_bytes() == before {
                return count;
            }
        }
    }
}
