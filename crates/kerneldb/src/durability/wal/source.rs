//! Where the log writer gets committed transactions from, and how it receives them: borrowed, so that
//! a source can hand out bytes of its ring without copying them first.

use crate::{LogReader, Op};

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

/// Receives transactions: `begin`, any number of `op`, `end`, and again.
pub trait TxnSink {
    /// A transaction with this commit timestamp follows; it is one above the previous one's.
    fn begin(&mut self, commit_ts: u64);
    /// The next change of the transaction.
    fn op(&mut self, op: OpRef<'_>);
    /// The transaction is complete.
    fn end(&mut self);
}

/// Hands over committed transactions in the order of their dense commit timestamps.
pub trait LogSource {
    /// Hands over the transactions that are complete, until there is none left or about `max_bytes` of
    /// keys and values were handed over. Returns how many there were.
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize;
}

impl LogSource for LogReader<'_> {
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
        self.drain_into(max_bytes, sink)
    }
}
