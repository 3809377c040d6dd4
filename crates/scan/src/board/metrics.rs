//! The metric variables (paper 3.2): what the worker tells of its pace, and what the service tells of the scan.
//!
//! Each is written by one side only. They are hints: the service makes sense of any values, and nothing but pace depends
//! on what the worker writes.
//!
//! Pages are returned by any thread of the worker's process, so what is written then is added to atomically.

use super::doorbell::{Bell, Sleeper};
use super::words::{AtomicU32, AtomicU64};

/// Written by the worker, but for the bell, which both write.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct WorkerWords {
    /// Pages that were returned.
    pub pages: AtomicU64,
    /// Bytes of them.
    pub bytes: AtomicU64,
    /// Time that the worker took for them, without what it waited for them, in nanoseconds of the board's clock.
    pub ingest_ns: AtomicU64,
    /// When the page in use was first accessed; 0: none is in use.
    pub first_access_ns: AtomicU64,
    /// When a page was last returned.
    pub returned_ns: AtomicU64,
    /// How often there was no page when the worker asked for one.
    pub starved: AtomicU64,
    /// How long it had none when it wanted one, in nanoseconds.
    pub starved_ns: AtomicU64,
    /// System calls that the worker made to wait and to ring.
    pub calls: AtomicU64,
    /// When the service wants to be woken.
    pub bell: Bell,
}

/// Written by the service, but for the sleeper, which both write.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ServiceWords {
    /// How many chunks the scan has at least: as many as have been begun, and one more if there are more. All of them in a pool.
    pub total: AtomicU64,
    /// How many bytes they are.
    pub total_bytes: AtomicU64,
    /// How many pages may be there unread, as the service sees it now.
    pub watermark: AtomicU64,
    /// Bytes that were read from files for this channel.
    pub bytes_read: AtomicU64,
    /// Pages that were read again because their file had changed.
    pub read_again: AtomicU64,
    /// Pages that were taken back before the worker used them.
    pub reclaimed: AtomicU64,
    /// Bytes that were cancelled before the worker had any page of their frames.
    pub cancelled: AtomicU64,
    /// No page comes any more, and why; 0: pages come.
    pub closed: AtomicU32,
    /// The worker waits on it.
    pub sleeper: Sleeper,
}
