//! The write-ahead log: its part in user space (paper 4.3).
//!
//! The engine puts every committed write into shared-memory rings. Two threads take it to disk: the
//! *drainer* empties the rings into frames in memory, the *flusher* writes frames and calls fsync. The
//! rings therefore keep draining while an fsync runs, and the transactions that come meanwhile form one
//! group for the next.
//!
//! - `source`: the interface of the engine that the log uses
//! - `frame`: the file format; `encoder` packs transactions into frames
//! - `files`: segments, rotation, and the handling of I/O errors
//! - `drainer`, `flusher`, `progress`: the threads and their shared state
//! - `segment`, `replay`, `settle`: reading of segments, telling incomplete writes from damage, and
//!   making the end of the log durable before new segments follow

mod drainer;
mod encoder;
mod files;
mod flusher;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod progress;
pub(crate) mod replay;
mod segment;
mod settle;
mod source;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use drainer::Drainer;
use files::LogFiles;
pub(crate) use files::remove_segments;
use flusher::Flusher;
pub(crate) use flusher::Report;
use progress::{LogProgress, lock};
pub use source::{LogSource, OpRef, TxnSink};

use crate::durability::disk::Dir;
use crate::{Durability, Error, Result};

/// Configuration of the log writer.
#[derive(Clone, Debug)]
pub struct WalConfig {
    /// The default condition for which a commit waits. With [`Durability::Sync`] the writer calls fsync
    /// as soon as there is something to write. With [`Durability::Async`] it does so every
    /// [`WalConfig::sync_interval`], or earlier when a thread waits.
    pub durability: Durability,
    /// Longest time that written data stays without fsync, 1 ms..=60 s.
    pub sync_interval: Duration,
    /// Bytes of log per segment file, 64 KiB..=4 GiB.
    pub segment_bytes: u64,
    /// Data is written once this many bytes wait, even if a millisecond has not passed, 4 KiB..=16 MiB.
    pub write_threshold: usize,
    /// Most bytes that are held in memory because they are not on disk yet. Beyond it the rings are no
    /// longer drained, so that they fill and writes are refused (back pressure). At least 1 MiB.
    pub max_unsynced_bytes: usize,
    /// Longest sleep of the writer between two reads of the rings when no transactions come, 1 ms..=1
    /// s.
    pub idle_sleep: Duration,
    /// Time that the writer waits after an I/O error before it tries again.
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

impl WalConfig {
    fn check(&self) -> Result<()> {
        let ms = Duration::from_millis;
        let problem = if !(64 << 10..=4 << 30).contains(&self.segment_bytes) {
            "log segments must have 64 KiB to 4 GiB"
        } else if !(ms(1)..=ms(60_000)).contains(&self.sync_interval) {
            "the log's sync interval must be 1 ms to 60 s"
        } else if !(4 << 10..=16 << 20).contains(&self.write_threshold) {
            "the log's write threshold must be 4 KiB to 16 MiB"
        } else if self.max_unsynced_bytes < 1 << 20 {
            "the log must be allowed to hold 1 MiB in memory at least"
        } else if !(ms(1)..=ms(1000)).contains(&self.idle_sleep) {
            "the log writer's idle sleep must be 1 ms to 1 s"
        } else if self.retry_interval < ms(1) {
            "the log's retry interval must be 1 ms at least"
        } else {
            return Ok(());
        };
        Err(Error::Config(problem.into()))
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
    /// Bytes written, including headers.
    pub bytes: u64,
    /// Calls of fsync on segments.
    pub syncs: u64,
    /// Number of I/O errors.
    pub errors: u64,
    /// Segment files in the directory at the moment.
    pub segments: u64,
}

/// The running log writer. All methods can be called from any thread. Dropping it is the same as
/// [`Wal::stop`] without the result.
pub struct Wal {
    shared: Arc<LogProgress>,
    dir: Arc<dyn Dir>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The beginning of a log.
pub(crate) struct Start {
    pub(crate) dir: Arc<dyn Dir>,
    pub(crate) database_id: [u8; 16],
    /// Newest commit that is recovered, and durable.
    pub(crate) ts: u64,
    /// Sequence number of the first new segment.
    pub(crate) seq: u64,
}

/// Gives the drainer its source, on the drainer's thread: it calls the function that it receives once.
pub(crate) type WithSource = Box<dyn FnOnce(&mut dyn FnMut(&mut dyn LogSource)) + Send>;

impl Wal {
    /// Starts the threads. One thread calls `report` at every change of the durable timestamp and of
    /// the failed state.
    pub(crate) fn start(
        config: WalConfig,
        start: Start,
        with_source: WithSource,
        report: Report,
    ) -> Result<Wal> {
        config.check()?;
        let shared = Arc::new(LogProgress::new(start.ts));
        let files =
            LogFiles::new(start.dir.clone(), start.database_id, config.segment_bytes, start.seq, start.ts);
        report(start.ts, false);
        let drainer = Drainer::new(config.clone(), shared.clone(), start.ts);
        let flusher = Flusher::new(config, shared.clone(), files, report);
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            bedplate_threads::spawn(std::thread::Builder::new().name(name.into()), body)
                .map_err(|e| Error::io(format!("starting the thread {name}"), e))
        };
        let mut threads = vec![spawn("kdb-log-flush", Box::new(move || flusher.run()))?];
        let drain = move || {
            let mut drainer = Some(drainer);
            with_source(&mut |source| {
                if let Some(drainer) = drainer.take() {
                    drainer.run(source);
                }
            });
        };
        // If this fails, dropping the drainer ends the flusher.
        threads.push(spawn("kdb-log-drain", Box::new(drain))?);
        Ok(Wal { shared, dir: start.dir, threads: Mutex::new(threads) })
    }

    /// Takes the contents of the rings to disk and ends the threads; idempotent. From then on the
    /// engine refuses logged writes. [`Error::WalFailed`] if a drained transaction could not be
    /// written.
    pub fn stop(&self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.kick();
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the log writer has panicked");
            }
        }
        let lost = self.shared.durable_ts() < self.shared.drained.load(Ordering::Acquire);
        if lost { Err(Error::WalFailed) } else { Ok(()) }
    }

    /// Every commit up to this timestamp is on disk. One atomic load.
    pub fn durable_ts(&self) -> u64 {
        self.shared.durable_ts()
    }

    /// Whether the log cannot be written at the moment (writes are refused until it can).
    pub fn failed(&self) -> bool {
        self.shared.failed()
    }

    /// Requests that `ts` becomes durable soon, without waiting for it. The writer wakes up and calls
    /// fsync as soon as it can. Event loops use this together with [`Wal::watch`].
    pub fn request(&self, ts: u64) {
        self.shared.request(ts);
    }

    /// Waits until every commit up to `ts` is on disk. `Ok(false)` when `timeout` passed first.
    /// [`Error::WalFailed`] when it passed while the log could not be written, or the log was stopped.
    pub fn wait_durable(&self, ts: u64, timeout: Duration) -> Result<bool> {
        self.shared.wait_durable(ts, timeout)
    }

    /// A file descriptor that becomes readable whenever the durable timestamp advances, or the log
    /// fails or recovers.
    pub fn watch(&self) -> Result<DurableWatch> {
        Ok(DurableWatch { fd: self.shared.watch()? })
    }

    /// Bytes logged since the start. One atomic load.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Counters. Lists the log's directory.
    pub fn stats(&self) -> WalStats {
        let shared = &self.shared;
        WalStats {
            durable_ts: shared.durable_ts(),
            drained_ts: shared.drained.load(Ordering::Acquire),
            failed: shared.failed(),
            txns: shared.txns.load(Ordering::Relaxed),
            bytes: self.bytes(),
            syncs: shared.syncs.load(Ordering::Relaxed),
            errors: shared.errors.load(Ordering::Relaxed),
            segments: files::list_segments(&*self.dir).map_or(0, |s| s.len() as u64),
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            tracing::error!(error = %e, "closing the write-ahead log");
        }
    }
}

/// Notification of an event loop: see [`Wal::watch`]. Dropping it unsubscribes.
pub struct DurableWatch {
    fd: Arc<OwnedFd>,
}

impl DurableWatch {
    /// The descriptor (a non-blocking eventfd) to wait for with `poll` or `epoll`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes the descriptor unreadable until the next change. Call it before reading
    /// [`Wal::durable_ts`], not after.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // EAGAIN: it was not readable.
        let _ = rustix::io::read(&*self.fd, &mut count);
    }
}
