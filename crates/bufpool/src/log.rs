//! The user's write-ahead log, as far as the pool needs to know it.

use std::io;

/// A log whose records are numbered. A page carries the number of the last record about it
/// ([`Exclusive::set_lsn`](crate::Exclusive::set_lsn)), and is not written before that record is durable.
pub trait Log: Send + Sync {
    /// Up to which number, inclusive, records are durable.
    fn durable_lsn(&self) -> u64;

    /// Returns when records up to this number, inclusive, are durable. It must not use the pool.
    fn make_durable(&self, up_to: u64) -> io::Result<()>;
}
