//! The greatest log sequence number that the user has put into a page.
//!
//! A page that the pool gives out, or fills itself, carries this number. So redo skips every record about the page from
//! before that moment: the user puts a record's number into its pages before they can be freed. A later record has a
//! greater number, because numbers rise, so redo applies it.
//!
//! The number may be of a record that is not durable yet. The pool makes the log durable up to it before it stores it,
//! in a page or in the superblock. Otherwise records after a crash could have numbers that are not above it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number. It has a cache line of its own, because all writers change it.
#[repr(align(128))]
pub(crate) struct LastLsn(AtomicU64);

impl LastLsn {
    /// Begins with the number that the superblock has.
    pub fn new(lsn: u64) -> Self {
        Self(AtomicU64::new(lsn))
    }

    /// Notes that a page has this LSN. Any thread may call it.
    #[inline]
    pub fn note(&self, lsn: u64) {
        if lsn > self.get() {
            // A page is freed and allocated under the allocator's lock, which orders this before the allocation's `get`.
            self.0.fetch_max(lsn, Ordering::Relaxed);
        }
    }

    /// The greatest number so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
