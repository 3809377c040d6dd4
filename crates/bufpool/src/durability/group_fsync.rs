//! One fsync for all threads that wait for one.
//!
//! A thread needs an fsync that begins after its writes. While an fsync runs, arriving threads wait for the next one, which
//! one of them runs for all. At most one fsync runs at a time, because the kernel reports an error to only one of two.
//!
//! The lock protects the rounds, and is not held while an fsync runs. It is a leaf.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::same_io_error;

#[derive(Default)]
pub(crate) struct GroupFsync {
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Default)]
struct Rounds {
    /// The fsync that begins next. Threads that wait for it hold a reference.
    next: Arc<OnceLock<Outcome>>,
    running: bool,
}

type Outcome = io::Result<()>;

impl GroupFsync {
    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result of an fsync that began after this call. The calling thread runs `fsync` itself, or waits for
    /// a thread that does.
    pub fn run(&self, fsync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut rounds = self.rounds();
        let round = Arc::clone(&rounds.next);
        loop {
            if let Some(outcome) = round.get() {
                return outcome.as_ref().copied().map_err(same_io_error);
            }
            if !rounds.running {
                break;
            }
            rounds = self.ended.wait(rounds).unwrap_or_else(PoisonError::into_inner);
        }
        // No fsync runs and this round has no outcome, so it is the next one.
        rounds.running = true;
        rounds.next = Arc::default();
        drop(rounds);
        let running = Running { group: self, round, outcome: None };
        running.finish(fsync())
    }
}

/// An fsync that runs. If it panics, the threads that wait for it receive an error.
struct Running<'g> {
    group: &'g GroupFsync,
    round: Arc<OnceLock<Outcome>>,
    outcome: Option<Outcome>,
}

impl Running<'_> {
    fn finish(mut self, outcome: io::Result<()>) -> io::Result<()> {
        let result = outcome.as_ref().copied().map_err(same_io_error);
        self.outcome = Some(outcome);
        result
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        let outcome = outcome.unwrap_or_else(|| Err(io::Error::other("the storage panicked in an fsync")));
        let mut rounds = self.group.rounds();
        let _ = self.round.set(outcome);
        rounds.running = false;
        drop(rounds);
        self.group.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_wait_while_an_fsync_runs_share_the_next_one() {
        let group = GroupFsync::default();
        let (fsyncs, begun, go_on) = (AtomicU64::new(0), Barrier::new(2), Barrier::new(2));
        let count = || {
            fsyncs.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::from_raw_os_error(libc::EIO))
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let first = || {
                    begun.wait();
                    go_on.wait();
                    Ok(())
                };
                group.run(first).unwrap();
            });
            begun.wait();
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| group.run(count).unwrap_err())).collect();
            // Each of them holds the round that begins next; the rounds hold it, too.
            while Arc::strong_count(&group.rounds().next) < 5 {
                thread::yield_now();
            }
            go_on.wait();
            for thread in waiting {
                assert_eq!(thread.join().unwrap().raw_os_error(), Some(libc::EIO));
            }
        });
        assert_eq!(fsyncs.into_inner(), 1);
    }

    #[test]
    fn an_fsync_that_panics_is_an_error_for_the_threads_that_wait() {
        let group = GroupFsync::default();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| group.run(|| panic!("broken"))));
        assert!(panic.is_err());
        group.run(|| Ok(())).unwrap();
    }
}
