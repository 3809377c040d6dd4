//! Many operations at once, by io_uring.
//!
//! The kernel reads and writes memory that callers own, so nobody leaves here before every operation that the kernel has
//! been given is complete. An operation that did not go as it should is done once more by an ordinary system call, which
//! tells what is wrong; the same call is what happens where there is no io_uring.
//!
//! Polled rings are for those to whom a system call is dear: a thread of the kernel's looks for what is to be done, all
//! rings of a file have the same one, and callers look for results a while before they ask to be woken.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, cqueue};

/// The most operations at once.
const DEPTH: usize = 64;
/// So long the kernel's thread goes on looking when there is nothing to do, in milliseconds; then it has to be woken.
const IDLE: u32 = 100;
/// How often callers look before they ask to be woken.
const LOOKS: u32 = 20_000;

/// How soon the caller is to know of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// When all of them are complete: that takes least.
    ForAll,
    /// When it is complete.
    ForEach,
}

/// Rings that nobody uses at the moment. Their lock is a leaf.
#[derive(Default)]
pub(super) struct Rings {
    spare: Mutex<Spare>,
    refused: AtomicBool,
    polled: bool,
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
        let ring = builder.build(DEPTH as u32)?;
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
            let mut result = Ok(());
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
                result = match ring.submit_and_wait(enough) {
                    Ok(_) => Ok(()),
                    Err(error) if is_passing(&error) => Ok(()),
                    Err(error) => Err(error),
                };
                complete += reap(&mut ring, &mut done);
                if result.is_err() {
                    break;
                }
            }
            if result.is_err() {
                // What it was given is still the kernel's; what it was not given dies with the ring.
                let given = if self.polled { some.len() } else { some.len() - ring.submission().len() };
                while complete < given {
                    std::thread::sleep(Duration::from_micros(100));
                    complete += reap(&mut ring, &mut done);
                }
                self.refused.store(true, Ordering::Relaxed);
                return;
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

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
