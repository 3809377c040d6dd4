//! Many operations at once, by io_uring.
//!
//! The kernel reads and writes memory that callers own, so nobody leaves here before every operation that the kernel has
//! been given is complete. An operation that did not go as it should is done once more by an ordinary system call, which
//! tells what is wrong; the same call is what happens where there is no io_uring. When nothing is complete for a minute, the
//! kernel is asked to give up what is not with a device yet; that is `ECANCELED`, and not done once more.
//!
//! Polled rings are for those to whom a system call is dear: a thread of the kernel's looks for what is to be done, all
//! rings of a file have the same one, and callers look for results a while before they ask to be woken.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue};

/// The most operations at once.
const DEPTH: usize = 64;
/// So long the kernel's thread goes on looking when there is nothing to do, in milliseconds; then it has to be woken.
const IDLE: u32 = 100;
/// How often callers look before they ask to be woken.
const LOOKS: u32 = 20_000;

/// After so long without a completion, the kernel gives up the operations that no device has yet.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The result of an operation that the kernel gave up.
pub(super) const GIVEN_UP: i32 = -libc::ECANCELED;

/// How soon the caller is to know of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// When all of them are complete: that takes least.
    ForAll,
    /// When it is complete.
    ForEach,
}

/// Rings that nobody uses at the moment. Their lock is a leaf.
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
    /// A ring whose polling thread others share. It may be in use, and is never given up alone.
    shared: Option<RawFd>,
}

impl Rings {
    /// Rings that are polled.
    pub fn polled() -> Self {
        Self { polled: true, ..Self::default() }
    }

    /// Whether an operation that is alone is worth a ring.
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
        // Its thread says that it took a chunk after it has begun all of it, when that may be complete already: so there is
        // room for another.
        let ring = builder.build(2 * DEPTH as u32)?;
        spare.shared.get_or_insert(ring.as_raw_fd());
        Ok(ring)
    }

    /// Whether rings are to be had here.
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
            // Refused by old kernels, by containers, and by administrators.
            let ring = self.make(&mut spare).ok();
            self.refused.store(ring.is_none(), Ordering::Relaxed);
            ring
        })
    }

    fn give(&self, ring: IoUring) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).rings.push(ring);
    }

    /// Submits what is to be done and waits for so many to be complete, but not for ever where the kernel can do that.
    fn wait(&self, ring: &IoUring, enough: usize) -> io::Result<()> {
        if !ring.params().is_feature_ext_arg() {
            return ring.submit_and_wait(enough).map(drop);
        }
        let patience = Timespec::from(self.patience);
        ring.submitter().submit_with_args(enough, &SubmitArgs::new().timespec(&patience)).map(drop)
    }

    /// Has operations done. `done` is told each one's number and result; those that it is not told of were not begun.
    ///
    /// # Safety
    /// The memory that the entries name is the caller's until this returns.
    pub unsafe fn run(&self, entries: &[Entry], wait: Wait, mut done: impl FnMut(usize, i32)) {
        let Some(mut ring) = self.take() else { return };
        for (chunk, some) in entries.chunks(DEPTH).enumerate() {
            for (index, entry) in some.iter().enumerate() {
                let entry = entry.clone().user_data((chunk * DEPTH + index) as u64);
                // SAFETY: as the caller promises; the queue has room for a chunk.
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
                    // Nothing has happened for too long. The kernel gives up what it has not begun to do, and says so; of what a
                    // device has been told to do there is nothing but waiting, for the memory is the device's.
                    Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                        if news == 0 {
                            let all = CancelBuilder::any();
                            let _ = ring.submitter().register_sync_cancel(Some(Timespec::new()), all);
                        }
                    }
                    Err(error) => {
                        self.refused.store(true, Ordering::Relaxed);
                        // What it was given is still the kernel's; what it was not given dies with the ring. A thread of the
                        // kernel's that lives may be taking it now, one that is dead will not.
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

/// Whether a call that failed so is to be made once more.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    /// Nobody ever writes to the pipe.
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

    /// Reads that are complete at once, many chunks one right after the other.
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
