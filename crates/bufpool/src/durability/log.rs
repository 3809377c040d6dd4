//! The part of the user's write-ahead log that the pool needs.

use std::io;

use crate::pool::Pool;

/// A log whose records are numbered. A page carries the number of the last record about it
/// ([`Exclusive::set_lsn`](crate::Exclusive::set_lsn)), and is not written before that record is durable.
///
/// The pool relies on these rules:
///
/// 1. Each record has a greater number than all records before it. When a pool is opened again, after a crash or not, the log is
///    durable up to the last record that was, and numbers continue above it. Otherwise opening the pool fails with
///    [`Error::LogTooShort`](crate::Error::LogTooShort), or reading a page with
///    [`Error::PageAheadOfLog`](crate::Error::PageAheadOfLog). A page that is first read after new records have passed its LSN is
///    not noticed.
/// 2. The user holds a page exclusively while it appends a record about it, and then calls `set_lsn`.
/// 3. The record after which nothing refers to a page has its number in some page before the user frees the first one.
/// 4. The first record about a page that was allocated has the page's whole payload. Redo of that record finds zeros, the page's
///    content from an earlier use, or a list of free pages.
///
/// A page that [`Pool::allocate`](crate::Pool::allocate) returns has zeros, and the greatest number that the pool has
/// seen. So its number does not tell whether the log has an image of it; rule 4 does.
pub trait Log: Send + Sync {
    /// The number up to which, inclusive, records are durable.
    fn durable_lsn(&self) -> u64;

    /// Returns when records up to this number, inclusive, are durable. It must not use the pool.
    fn make_durable(&self, up_to: u64) -> io::Result<()>;
}

impl Pool {
    /// The log that this pool waits for, if it has one.
    pub fn log(&self) -> Option<&dyn Log> {
        self.log.as_deref()
    }
}
