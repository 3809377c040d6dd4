//! The write-ahead log: user space's half of it (paper 4.3).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{Durability, Result};

/// Knobs of the log writer.
#[derive(Clone, Debug)]
pub struct WalConfig {
    /// What a commit waits for when its session says nothing else. With [`Durability::Sync`] the
    /// writer calls fsync as soon as there is something to write; with [`Durability::Async`] it does
    /// so every [`WalConfig::sync_interval`], or earlier when somebody waits.
    pub durability: Durability,
    /// Longest time that written data stays without fsync, 1 ms..=60 s.
    pub sync_interval: Duration,
    /// Bytes of log per segment file, 64 KiB..=4 GiB.
    pub segment_bytes: u64,
    /// Data is written once this many bytes wait, even if a millisecond has not passed, 4 KiB..=16 MiB.
    pub write_threshold: usize,
    /// Most bytes that are held in memory because they are not on disk yet; beyond it the rings are
    /// no longer drained, so that they fill and writes are refused (back pressure). At least 1 MiB.
    pub max_unsynced_bytes: usize,
    /// Longest sleep of the writer between two looks at the rings when nothing happens, 1 ms..=1 s.
    pub idle_sleep: Duration,
    /// How long the writer waits before it tries again after an I/O error.
    pub retry_interval: Duration,
}

impl Default for WalConfig {
    fn default() -> Self {
        WalConfig {
            durability: Durability::Async,
            sync_interval: Duration::from_millis(100),
            segment_bytes: 64 << 20,
            write_threshold: 1 << 20,
            max_unsynced_bytes: 64 << 20,
            idle_sleep: Duration::from_millis(4),
            retry_interval: Duration::from_millis(250),
        }
    }
}

/// Counters of the log writer since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Every commit up to this timestamp is on disk.
    pub durable_ts: u64,
    /// Every commit up to this timestamp has left the rings.
    pub drained_ts: u64,
    /// Whether the log cannot be written at the moment.
    pub failed: bool,
    /// Transactions written.
    pub txns: u64,
    /// Bytes written, headers included.
    pub bytes: u64,
    /// Calls of fsync on segments.
    pub syncs: u64,
    /// I/O errors met.
    pub errors: u64,
    /// Segment files now in the directory.
    pub segments: u64,
}

/// The running log writer. All methods can be called from any thread.
pub struct Wal {
    _private: (),
}

impl Wal {
    /// Every commit up to this timestamp is on disk. One atomic load.
    pub fn durable_ts(&self) -> u64 {
        todo!()
    }

    /// Whether the log cannot be written at the moment (writes are refused until it can).
    pub fn failed(&self) -> bool {
        todo!()
    }

    /// Asks that `ts` becomes durable soon, without waiting for it: the writer is woken up and calls
    /// fsync as soon as it can. Together with [`Wal::watch`] this is what an event loop uses.
    pub fn request(&self, _ts: u64) {
        todo!()
    }

    /// Waits until every commit up to `ts` is on disk. `Ok(false)` when `timeout` passed first;
    /// [`crate::Error::WalFailed`] when it passed while the log could not be written.
    pub fn wait_durable(&self, _ts: u64, _timeout: Duration) -> Result<bool> {
        todo!()
    }

    /// A file descriptor that becomes readable whenever the durable timestamp advances, or the log
    /// fails or recovers.
    pub fn watch(&self) -> Result<DurableWatch> {
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> WalStats {
        todo!()
    }
}

/// Notification of an event loop: see [`Wal::watch`]. Dropping it unsubscribes.
pub struct DurableWatch {
    _private: (),
}

impl DurableWatch {
    /// The descriptor (a non-blocking eventfd) to wait for with `poll` or `epoll`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        todo!()
    }

    /// Makes the descriptor unreadable until the next change. Call it before reading
    /// [`Wal::durable_ts`], not after.
    pub fn clear(&self) {
        todo!()
    }
}
