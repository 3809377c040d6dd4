//! The statistics of a channel.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::Channel;
use crate::board::State;

/// The amounts that a channel has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames that were read by the worker.
    pub frames: u64,
    /// Bytes that were read by the worker.
    pub bytes: u64,
    /// Nanoseconds that the worker spent on them.
    pub ingest_ns: u64,
    /// Number of times that there was no page when the worker wanted one.
    pub starved: u64,
    /// Nanoseconds that it waited for one.
    pub starved_ns: u64,
    /// Number of system calls that it made.
    pub calls: u64,
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// Number of times that a chunk was read again because its file changed meanwhile.
    pub read_again: u64,
    /// Frames that were taken back before the worker used them.
    pub reclaimed: u64,
    /// Bytes that were cancelled.
    pub cancelled: u64,
    /// Pages that the worker got and that are not stable, in a scan that does not watch its files.
    pub unstable: u64,
    /// Frames that are ready now and unread.
    pub unread: u64,
    /// Current maximum of that number.
    pub watermark: u64,
}

impl Channel {
    /// The channel's statistics.
    pub fn statistics(&self) -> Statistics {
        let (worker, service) = (self.board().worker(), self.board().service());
        let get = |word: &AtomicU64| word.load(Relaxed);
        let ready = |entry: &&crate::board::Entry| entry.word.state() == State::Ready;
        Statistics {
            frames: get(&worker.pages),
            bytes: get(&worker.bytes),
            ingest_ns: get(&worker.ingest_ns),
            starved: get(&worker.starved),
            starved_ns: get(&worker.starved_ns),
            calls: get(&worker.calls),
            bytes_read: get(&service.bytes_read),
            read_again: get(&service.read_again),
            reclaimed: get(&service.reclaimed),
            cancelled: get(&service.cancelled) + self.cancelled_here,
            unstable: self.unstable,
            unread: self.board().entries().iter().filter(ready).count() as u64,
            watermark: get(&service.watermark),
        }
    }
}
