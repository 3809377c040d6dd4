//! Second stage: writes frames and calls fsync. It decides when, and handles errors.
//!
//! Group commit needs no timer: frames that were queued while an fsync ran go into the next one.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::WalConfig;
use super::files::LogFiles;
use super::frame::Frame;
use super::progress::{LogProgress, lock};
use crate::Durability;

/// Called at every change of (durable timestamp, failed).
pub(crate) type Report = Box<dyn Fn(u64, bool) + Send + Sync>;

pub(crate) struct Flusher {
    config: WalConfig,
    shared: Arc<LogProgress>,
    files: LogFiles,
    report: Report,
    /// Time at which the oldest frame that is not durable came.
    oldest: Option<Instant>,
    /// After an error: time of the next attempt.
    retry_at: Option<Instant>,
    broken: bool,
}

/// Result of the wait.
struct Work {
    frames: Vec<Frame>,
    closed: bool,
}

impl Flusher {
    pub(crate) fn new(
        config: WalConfig,
        shared: Arc<LogProgress>,
        files: LogFiles,
        report: Report,
    ) -> Flusher {
        Flusher { config, shared, files, report, oldest: None, retry_at: None, broken: false }
    }

    /// Works until the drainer has ended and everything is on disk, or cannot be put there.
    pub(crate) fn run(mut self) {
        loop {
            let work = self.wait();
            self.flush(work.frames, work.closed);
            if work.closed {
                break;
            }
        }
        self.files.close();
    }

    fn wait(&mut self) -> Work {
        let mut queue = lock(&self.shared.queue);
        loop {
            self.broken |= queue.broken;
            let now = Instant::now();
            let deadline = self.retry_at.or(self.oldest.map(|t| t + self.config.sync_interval));
            let due = deadline.is_some_and(|t| t <= now);
            // After an error, new frames wait for the retry.
            let ready = self.retry_at.is_none() && (!queue.frames.is_empty() || self.sync_wanted());
            if queue.closed || due || (ready && queue.notified) {
                queue.notified = false;
                let mut frames = Vec::new();
                std::mem::swap(&mut frames, &mut queue.frames);
                while let Some(buffer) = self.files.take_spare() {
                    queue.spare.push(buffer);
                }
                return Work { frames, closed: queue.closed };
            }
            let timeout = deadline.map_or(Duration::from_secs(3600), |t| t - now);
            queue = self
                .shared
                .queue_ready
                .wait_timeout(queue, timeout)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn sync_wanted(&self) -> bool {
        self.files.pending_bytes() > 0 && self.shared.sync_wanted()
    }

    /// Takes frames, and writes or syncs them if that is due.
    fn flush(&mut self, frames: Vec<Frame>, closing: bool) {
        let now = Instant::now();
        for frame in frames {
            self.shared.txns.fetch_add(u64::from(frame.txns), Ordering::Relaxed);
            self.files.push(frame);
        }
        if self.files.pending_bytes() > 0 && self.oldest.is_none() {
            self.oldest = Some(now);
        }
        if self.retry_at.is_some_and(|at| at > now) && !closing {
            return;
        }
        let sync = closing
            || self.retry_at.is_some()
            || self.config.durability == Durability::Sync
            || self.shared.sync_wanted()
            || self.files.pending_bytes() >= self.config.max_unsynced_bytes / 2
            || self.oldest.is_some_and(|t| now - t >= self.config.sync_interval);
        let before = self.files.pending_bytes();
        let result = if sync { self.files.sync() } else { self.files.write() };
        self.shared.unsynced.fetch_sub(before - self.files.pending_bytes(), Ordering::Relaxed);
        self.shared.bytes.store(self.files.bytes_written, Ordering::Relaxed);
        self.shared.syncs.store(self.files.syncs, Ordering::Relaxed);
        if self.files.pending_bytes() == 0 {
            self.oldest = None;
        }
        let was_failed = self.retry_at.is_some();
        match result {
            Ok(()) => {
                if was_failed {
                    tracing::info!("the write-ahead log can be written again");
                }
                self.retry_at = None;
            }
            Err(e) => {
                self.shared.errors.fetch_add(1, Ordering::Relaxed);
                if !was_failed {
                    tracing::error!(error = %e, "writing the write-ahead log failed: writes are refused until it works");
                }
                self.retry_at = Some(Instant::now() + self.config.retry_interval);
            }
        }
        self.publish(self.retry_at.is_some() || self.broken);
    }

    fn publish(&self, failed: bool) {
        let durable = self.files.durable_ts();
        self.shared.publish(durable, failed, || (self.report)(durable, failed));
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        // Later commits are not logged.
        self.publish(true);
        self.shared.end();
    }
}
