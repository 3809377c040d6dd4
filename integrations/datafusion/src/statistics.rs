//! Statistics of the scans of a session.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of all streams.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub served_bytes: AtomicU64,
    pub served_streams: AtomicU64,
    pub default_streams: AtomicU64,
    pub fallbacks: AtomicU64,
}

impl Counters {
    pub fn read(&self) -> Statistics {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            served_bytes: of(&self.served_bytes),
            served_streams: of(&self.served_streams),
            default_streams: of(&self.default_streams),
            fallbacks: of(&self.fallbacks),
        }
    }
}

/// Counts of the scans since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of column chunks that the service delivered to decoders.
    pub served_bytes: u64,
    /// Streams that began to read by the service.
    pub served_streams: u64,
    /// Streams of local files that were left to the default reader: small files, files in the page cache, and files that the
    /// service refuses.
    pub default_streams: u64,
    /// Streams that went on by the default reader, because their file changed, or the service failed.
    pub fallbacks: u64,
}
