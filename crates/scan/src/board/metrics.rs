//! The metric variables (paper 3.2): the worker reports its pace, and the service reports the progress of the scan.
//!
//! Only one side writes each variable, except the bell and the sleeper. The variables are hints: the service accepts any values,
//! and the worker's values affect nothing but the pace.
//!
//! Any thread of the worker's process can return pages, so these threads update the counters by atomic additions.

use super::doorbell::{Bell, Sleeper};
use super::words::{AtomicU32, AtomicU64};

/// The worker writes these words. Both sides write the bell.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct WorkerWords {
    /// Number of pages that the worker has returned.
    pub pages: AtomicU64,
    /// Bytes in the returned pages.
    pub bytes: AtomicU64,
    /// Time that the worker spent on the returned pages, without waits, in nanoseconds of the board's clock.
    pub ingest_ns: AtomicU64,
    /// The time when the worker first accessed the page in use; 0: no page is in use.
    pub first_access_ns: AtomicU64,
    /// The time when the worker last returned a page.
    pub returned_ns: AtomicU64,
    /// Number of times that the worker asked for a page and there was none.
    pub starved: AtomicU64,
    /// Time during which the worker wanted a page and had none, in nanoseconds.
    pub starved_ns: AtomicU64,
    /// Number of system calls that the worker made to wait and to ring.
    pub calls: AtomicU64,
    /// The event for which the service wants to be woken.
    pub bell: Bell,
}

/// The service writes these words. Both sides write the sleeper.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ServiceWords {
    /// Lower bound of the number of chunks in the scan: the chunks begun so far, plus one if more follow. In a pool it counts all
    /// chunks.
    pub total: AtomicU64,
    /// Bytes in these chunks.
    pub total_bytes: AtomicU64,
    /// Number of unread pages that the service currently allows on the board.
    pub watermark: AtomicU64,
    /// Bytes that the service has read from files for this channel.
    pub bytes_read: AtomicU64,
    /// Number of pages that the service has read again because their file had changed.
    pub read_again: AtomicU64,
    /// Number of pages that the service has reclaimed before the worker used them.
    pub reclaimed: AtomicU64,
    /// Bytes that were cancelled before the worker had any page of their frames.
    pub cancelled: AtomicU64,
    /// The reason why no more pages come; 0: pages come.
    pub closed: AtomicU32,
    /// The word on which the worker waits.
    pub sleeper: Sleeper,
}
