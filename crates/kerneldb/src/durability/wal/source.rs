//! Where the log writer gets committed transactions from.

use crate::LogReader;
pub use crate::engine::{OpRef, TxnSink};

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
