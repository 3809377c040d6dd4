//! The source of committed transactions for the log writer.

use crate::LogReader;
pub use crate::engine::{OpRef, TxnSink};

/// Hands over committed transactions in the order of their dense commit timestamps.
pub trait LogSource {
    /// Hands over complete transactions, until none is left or about `max_bytes` of keys and values
    /// were handed over. Returns the number of transactions.
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize;
}

impl LogSource for LogReader<'_> {
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
        self.drain_into(max_bytes, sink)
    }
}
