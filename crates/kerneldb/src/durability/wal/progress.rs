//! State that the log's threads and its users share.
//!
//! There are three small locks: `queue` (drainer → flusher), `kick` (users → drainer), `progress` (flusher → waiting
//! users). None is held while another one is taken or I/O is done. The atomics are written before the lock of the
//! condition that they belong to is taken, so no wake-up is lost.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::frame::Frame;
use crate::limits::FRAME_BYTES;
use crate::{Error, Result};

/// Work for the flusher.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) frames: Vec<Frame>,
    pub(crate) spare: Vec<Vec<u8>>,
    /// The flusher must process the frames now.
    pub(crate) notified: bool,
    /// The drainer has ended; no more frames come.
    pub(crate) closed: bool,
    /// The source broke its promise: the log cannot go on.
    pub(crate) broken: bool,
}

impl Queue {
    /// Adds closed frames, and returns by how many bytes the queue has grown.
    ///
    /// A short frame becomes a part of the one before. Otherwise thousands of them would wait for a disk that makes
    /// no progress, each in a buffer of its own.
    pub(crate) fn add(&mut self, frames: Vec<Frame>) -> usize {
        let mut bytes = 0;
        for frame in frames {
            match self.frames.last_mut() {
                Some(last) if last.len() + frame.len() <= FRAME_BYTES => {
                    let before = last.len();
                    self.spare.push(last.absorb(frame));
                    bytes += last.len() - before;
                }
                _ => {
                    bytes += frame.len();
                    self.frames.push(frame);
                }
            }
        }
        bytes
    }
}

#[derive(Default)]
pub(crate) struct LogProgress {
    durable: AtomicU64,
    failed: AtomicBool,
    /// Highest timestamp that a thread wants to be durable.
    wanted: AtomicU64,
    pub(crate) drained: AtomicU64,
    /// Bytes of frames that are not durable, including queued ones.
    pub(crate) unsynced: AtomicUsize,
    pub(crate) stop: AtomicBool,
    /// The flusher has ended: `durable` does not advance any more.
    ended: AtomicBool,
    pub(crate) txns: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) queue_ready: Condvar,
    kick: Mutex<bool>,
    kicked: Condvar,
    progress: Mutex<()>,
    progressed: Condvar,
    watches: Mutex<Vec<Weak<OwnedFd>>>,
}

/// A panic in another thread leaves the data of these locks consistent (they are held for a few assignments).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogProgress {
    pub(crate) fn new(start_ts: u64) -> LogProgress {
        let shared = LogProgress::default();
        shared.durable.store(start_ts, Ordering::Relaxed);
        shared.drained.store(start_ts, Ordering::Relaxed);
        shared
    }

    pub(crate) fn durable_ts(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether a thread waits for more than is durable.
    pub(crate) fn sync_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire) > self.durable_ts()
    }

    /// Whether a thread waits for a transaction that has not left the rings.
    pub(crate) fn drain_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire) > self.drained.load(Ordering::Relaxed)
    }

    /// Requests that `ts` becomes durable.
    pub(crate) fn request(&self, ts: u64) {
        if self.wanted.fetch_max(ts, Ordering::AcqRel) < ts && self.durable_ts() < ts {
            self.kick();
        }
    }

    /// Wakes up the drainer.
    pub(crate) fn kick(&self) {
        *lock(&self.kick) = true;
        self.kicked.notify_one();
    }

    /// The drainer's sleep, until a kick or `timeout`. Returns whether it was kicked.
    pub(crate) fn sleep(&self, timeout: Duration) -> bool {
        let guard = lock(&self.kick);
        let (mut guard, _) = self
            .kicked
            .wait_timeout_while(guard, timeout, |kicked| !*kicked)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut guard)
    }

    /// Stores the flusher's progress. If it has changed, this calls `report` and then wakes up the waiting threads, because they read
    /// what `report` writes.
    pub(crate) fn publish(&self, durable: u64, failed: bool, report: impl FnOnce()) {
        let before = self.durable.swap(durable, Ordering::AcqRel);
        let was_failed = self.failed.swap(failed, Ordering::AcqRel);
        if before == durable && was_failed == failed {
            return;
        }
        report();
        drop(lock(&self.progress));
        self.progressed.notify_all();
        lock(&self.watches).retain(|watch| {
            let Some(fd) = watch.upgrade() else { return false };
            // If the counter is full (EAGAIN), the descriptor is readable already.
            let _ = rustix::io::write(&*fd, &1u64.to_ne_bytes());
            true
        });
    }

    pub(crate) fn wait_durable(&self, ts: u64, timeout: Duration) -> Result<bool> {
        if self.durable_ts() >= ts {
            return Ok(true);
        }
        self.request(ts);
        let deadline = Instant::now().checked_add(timeout);
        let mut guard = lock(&self.progress);
        loop {
            if self.durable_ts() >= ts {
                return Ok(true);
            }
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() || self.ended.load(Ordering::Acquire) {
                return if self.failed() { Err(Error::WalFailed) } else { Ok(false) };
            }
            guard = self.progressed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The flusher's last call: wakes all waiting threads.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        drop(lock(&self.progress));
        self.progressed.notify_all();
    }

    pub(crate) fn watch(&self) -> Result<Arc<OwnedFd>> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|e| Error::io("creating an eventfd", io::Error::from(e)))?;
        let fd = Arc::new(fd);
        lock(&self.watches).push(Arc::downgrade(&fd));
        Ok(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_threads_wake_up_after_the_report() {
        let progress = LogProgress::default();
        let watch = progress.watch().unwrap();
        let is_awake = || {
            let mut polled = [rustix::event::PollFd::new(&*watch, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))
                .unwrap()
                == 1
        };
        let mut reported = false;
        progress.publish(7, false, || {
            assert!(!is_awake(), "a waiter must not look before the report");
            reported = true;
        });
        assert!(reported && is_awake());
        assert_eq!(progress.durable_ts(), 7);
        progress.publish(7, false, || panic!("nothing has changed"));
    }
}
