//! Many operations at once, with io_uring.
//!
//! The kernel reads and writes memory that callers own, so a call returns only after every operation that the kernel has accepted
//! is complete. An operation that failed is repeated by an ordinary system call, which returns the error. The same call is used
//! if there is no io_uring. If nothing completes for a minute, the kernel is asked to cancel what no device has yet. The result
//! is `ECANCELED`, and that operation is not repeated.
//!
//! Polled rings are for callers to which a system call is expensive, as in ring 0. A thread of the kernel looks for operations,
//! and all rings of a file share it. Callers look for results for a while before they ask to be woken.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue};

/// Maximum number of operations at once.
const DEPTH: usize = 64;
/// Time in milliseconds for which the kernel's thread polls without work. Then it must be woken.
const IDLE: u32 = 100;
/// Number of times that a caller polls before it asks to be woken.
const LOOKS: u32 = 20_000;

/// Time without a completion after which the kernel cancels the operations that no device has yet.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The result of an operation that the kernel canceled.
pub(super) const GIVEN_UP: i32 = -libc::ECANCELED;

/// The moment when the caller learns of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// When all of them are complete. This costs least.
    ForAll,
    /// When it is complete.
    ForEach,
}

/// Rings that no thread uses at the moment. Their lock is a leaf.
pub(super) struct Rings {
    spare: Mutex<Spare>,
    refused: AtomicBool,
    polled: bool,
    patience: Duration,
}

impl Default for Rings {
    fn default() -> Self {
        Self { spare: Mutex::default(), refused: AtomicBool::new(false), polled: false, patience: PATIENCE }
    }
}

#[derive(Default)]
struct Spare {
    rings: Vec<IoUring>,
    /// A ring whose polling thread others share. It may be in use, and is never dropped alone.
    shared: Option<RawFd>,
}

impl Rings {
    /// Rings that are polled.
    pub fn polled() -> Self {
        Self { polled: true, ..Self::default() }
    }

    /// Whether a single operation is worth a ring.
    pub fn is_polled(&self) -> bool {
        self.polled
    }

    fn make(&self, spare: &mut Spare) -> io::Result<IoUring> {
        if !self.polled {
            return IoUring::new(DEPTH as u32);
        }
        let mut builder = IoUring::builder();
        builder.setup_sqpoll(IDLE);
        if let Some(shared) = spare.shared {
            builder.setup_attach_wq(shared);
        }
        // The kernel's thread reports that it took a chunk only after it has begun all of it, which may be complete by then. So
        // the ring has room for another chunk.
        let ring = builder.build(2 * DEPTH as u32)?;
        spare.shared.get_or_insert(ring.as_raw_fd());
        Ok(ring)
    }

    /// Whether rings work here.
    pub fn work(&self) -> bool {
        match self.take() {
            Some(ring) => {
                self.give(ring);
                true
            }
            None => false,
        }
    }

    fn take(&self) -> Option<IoUring> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.rings.pop().or_else(|| {
            // Old kernels, containers, and administrators refuse rings.
            let ring = self.make(&mut spare).ok();
            self.refused.store(ring.is_none(), Ordering::Relaxed);
            ring
        })
    }

    fn give(&self, ring: IoUring) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).rings.push(ring);
    }

    /// Submits operations, and waits until `enough` are complete. The wait has a time limit if the kernel supports one.
    fn wait(&self, ring: &IoUring, enough: usize) -> io::Result<()> {
        if !ring.params().is_feature_ext_arg() {
            return ring.submit_and_wait(enough).map(drop);
        }
        let patience = Timespec::from(self.patience);
        ring.submitter().submit_with_args(enough, &SubmitArgs::new().timespec(&patience)).map(drop)
    }

    /// Runs operations. `done` gets the number and the result of each. An operation for which it is not called was not begun.
    ///
    /// # Safety
    /// The memory that the entries name must belong to the caller until this returns.
    pub unsafe fn run(&self, entries: &[Entry], wait: Wait, mut done: impl FnMut(usize, i32)) {
        let Some(mut ring) = self.take() else { return };
        for (chunk, some) in entries.chunks(DEPTH).enumerate() {
            for (index, entry) in some.iter().enumerate() {
                let entry = entry.clone().user_data((chunk * DEPTH + index) as u64);
                // SAFETY: guaranteed by the caller; the queue has room for a chunk.
                unsafe { ring.submission().push(&entry) }.expect("a chunk fits");
            }
            let mut complete = 0;
            if self.polled && ring.submit().is_ok() {
                for _ in 0..LOOKS {
                    complete += reap(&mut ring, &mut done);
                    if complete == some.len() {
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
            while complete < some.len() {
                let enough = if wait == Wait::ForAll { some.len() - complete } else { 1 };
                let result = self.wait(&ring, enough);
                let news = reap(&mut ring, &mut done);
                complete += news;
                match result {
                    Ok(()) => {}
                    Err(error) if is_transient(&error) => {}
                    // Nothing has completed for too long. The kernel cancels the operations that it has not begun. An operation
                    // that a device has must be waited for, because the device uses the memory.
                    Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                        if news == 0 {
                            let all = CancelBuilder::any();
                            let _ = ring.submitter().register_sync_cancel(Some(Timespec::new()), all);
                        }
                    }
                    Err(error) => {
                        self.refused.store(true, Ordering::Relaxed);
                        // Operations that the kernel has accepted still belong to it. The others end with the ring. A living
                        // thread of the kernel may be accepting one now, but a dead one will not.
                        let dead = error.raw_os_error() == Some(libc::EOWNERDEAD);
                        let given = if self.polled && !dead {
                            some.len()
                        } else {
                            some.len() - ring.submission().len()
                        };
                        while complete < given {
                            std::thread::sleep(Duration::from_micros(100));
                            complete += reap(&mut ring, &mut done);
                        }
                        return;
                    }
                }
            }
        }
        self.give(ring);
    }
}

fn reap(ring: &mut IoUring, done: &mut impl FnMut(usize, i32)) -> usize {
    let mut count = 0;
    let tell = |entry: cqueue::Entry| {
        done(entry.user_data() as usize, entry.result());
        count += 1;
    };
    ring.completion().for_each(tell);
    count
}

/// Whether a call that failed with this error should be repeated.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    /// No thread writes to the pipe.
    #[test]
    fn what_is_never_answered_is_given_up() {
        for polled in [false, true] {
            let rings = Rings { polled, patience: Duration::from_millis(50), ..Rings::default() };
            let Some(ring) = rings.take() else {
                eprintln!("skipped: no io_uring here");
                return;
            };
            if ring
                .submitter()
                .register_sync_cancel(Some(Timespec::new()), CancelBuilder::any())
                .is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)))
            {
                eprintln!("skipped: Linux 6.0 gives up");
                return;
            }
            rings.give(ring);
            let (never, _other_end) = std::io::pipe().unwrap();
            let mut bytes = [[0u8; 8]; 3];
            let entries: Vec<_> = bytes
                .iter_mut()
                .map(|bytes| opcode::Read::new(types::Fd(never.as_raw_fd()), bytes.as_mut_ptr(), 8).build())
                .collect();
            let mut results = Vec::new();
            // SAFETY: the bytes live longer than this.
            unsafe { rings.run(&entries, Wait::ForAll, |index, result| results.push((index, result))) };
            results.sort();
            assert_eq!(results, [0, 1, 2].map(|index| (index, -libc::ECANCELED)));
        }
    }

    /// Reads that complete at once, in many successive chunks.
    #[test]
    fn polled_rings_take_chunk_after_chunk() {
        let rings = Rings::polled();
        if !rings.work() {
            eprintln!("skipped: no io_uring here");
            return;
        }
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let mut bytes = [[1u8; 8]; 8 * DEPTH + 1];
        let entries: Vec<_> = bytes
            .iter_mut()
            .map(|bytes| opcode::Read::new(types::Fd(zeros.as_raw_fd()), bytes.as_mut_ptr(), 8).build())
            .collect();
        for _ in 0..500 {
            let mut results = vec![0; entries.len()];
            // SAFETY: the bytes live longer than this.
            unsafe { rings.run(&entries, Wait::ForAll, |index, result| results[index] = result) };
            assert!(results.iter().all(|result| *result == 8));
        }
    }
}
