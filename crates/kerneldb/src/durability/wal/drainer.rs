//! First stage: takes transactions out of the rings as fast as they come, and never waits for the
//! disk. The rings therefore only fill when the disk is behind by `max_unsynced_bytes`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::WalConfig;
use super::encoder::Encoder;
use super::files::SPARE_BUFFERS;
use super::progress::{LogProgress, lock};
use super::source::LogSource;

/// Bytes taken per call of the source.
const DRAIN_BYTES: usize = 1 << 20;
/// Interval at which the rings are read while transactions come.
const TICK: Duration = Duration::from_millis(1);
/// A thread waits for a commit whose record, or an earlier one's, is not complete yet. That takes a
/// moment at most, so the drainer reads again after this time, but a limited number of times.
const RETRY: Duration = Duration::from_micros(30);
const RETRIES: u32 = 30;

/// Runs on a thread of its own: see [`super::Wal::start`].
pub(crate) struct Drainer {
    config: WalConfig,
    shared: Arc<LogProgress>,
    encoder: Encoder,
    queued_bytes: usize,
    last_notify: Instant,
    /// Whether the drainer has ended in order.
    finished: bool,
}

impl Drainer {
    pub(crate) fn new(config: WalConfig, shared: Arc<LogProgress>, start_ts: u64) -> Drainer {
        Drainer {
            config,
            shared,
            encoder: Encoder::new(start_ts),
            queued_bytes: 0,
            last_notify: Instant::now(),
            finished: false,
        }
    }

    /// Moves transactions from `source` to the flusher until the log is stopped.
    pub(crate) fn run(mut self, source: &mut dyn LogSource) {
        let mut quiet = 0u32;
        let mut retries = 0u32;
        while self.encoder.broken().is_none() {
            // This is read before the drain, so that the last drain sees all commits before the
            // stop.
            let stopping = self.shared.stop.load(Ordering::Acquire);
            if !stopping && self.shared.unsynced.load(Ordering::Relaxed) >= self.config.max_unsynced_bytes {
                self.notify();
                self.shared.sleep(TICK);
                continue;
            }
            let (txns, bytes) = self.drain(source);
            if txns > 0 {
                quiet = 0;
                retries = 0;
            }
            if bytes >= DRAIN_BYTES / 2 {
                continue;
            }
            if stopping && txns == 0 {
                break;
            }
            if self.shared.drain_wanted() && retries < RETRIES {
                retries += 1;
                std::thread::sleep(RETRY);
                continue;
            }
            let pause = if self.queued_bytes > 0 { TICK } else { self.pause(quiet) };
            quiet = quiet.saturating_add(1);
            if self.shared.sleep(pause) {
                quiet = 0;
                retries = 0;
            }
        }
        match self.encoder.broken() {
            Some(why) => {
                tracing::error!(why, "the write-ahead log cannot go on: its source lost transactions");
            }
            None => self.finished = true,
        }
    }

    /// Time until the next drain. It grows from a tick to the configured sleep while no
    /// transactions come.
    fn pause(&self, quiet: u32) -> Duration {
        // The pause grows only after 50 quiet ticks, because a few milliseconds without
        // transactions in a busy phase are not idleness.
        let doublings = quiet.saturating_sub(50).min(10);
        (TICK * (1 << doublings)).min(self.config.idle_sleep.max(TICK))
    }

    fn drain(&mut self, source: &mut dyn LogSource) -> (usize, usize) {
        let txns = source.drain(DRAIN_BYTES, &mut self.encoder);
        let frames = self.encoder.take_frames();
        let bytes: usize = frames.iter().map(|f| f.len()).sum();
        if bytes > 0 {
            self.shared.drained.store(self.encoder.last_ts(), Ordering::Release);
            let mut queue = lock(&self.shared.queue);
            let added = queue.add(frames);
            // The flusher takes frames only under this lock.
            self.shared.unsynced.fetch_add(added, Ordering::Relaxed);
            self.encoder.spare.append(&mut queue.spare);
            self.encoder.spare.truncate(SPARE_BUFFERS);
            self.queued_bytes += bytes;
        }
        let due = self.queued_bytes >= self.config.write_threshold
            || self.last_notify.elapsed() >= TICK
            || self.config.durability == crate::Durability::Sync;
        // A thread may want a sync of data that was only written so far.
        if (self.queued_bytes > 0 && due) || self.shared.sync_wanted() {
            self.notify();
        }
        (txns, bytes)
    }

    fn notify(&mut self) {
        self.queued_bytes = 0;
        self.last_notify = Instant::now();
        lock(&self.shared.queue).notified = true;
        self.shared.queue_ready.notify_one();
    }
}

impl Drop for Drainer {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.closed = true;
        queue.broken |= !self.finished;
        drop(queue);
        self.shared.queue_ready.notify_one();
    }
}
