//! Waiting for a page that another thread holds. The thread first spins, then yields the processor, and then sleeps. It
//! sleeps because a page may be held as long as a read from storage takes.

use std::time::{Duration, Instant};

/// Number of pauses that spin.
const SPINS: u32 = 6;
/// Number of pauses that yield the processor, before the first sleep.
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
/// Number of sleeps of the same length, and the maximum number of doublings of that length. So a sleep is a fraction of
/// the time waited so far, and 3.2 milliseconds at most.
const NAPS: u32 = 8;
const DOUBLINGS: u32 = 6;

/// A sequence of pauses that become longer.
#[derive(Default)]
pub(crate) struct Backoff {
    step: u32,
    since: Option<Instant>,
}

impl Backoff {
    #[cold]
    pub fn pause(&mut self) {
        if self.step < SPINS {
            (0..1 << self.step).for_each(|_| std::hint::spin_loop());
        } else if self.step < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let doublings = ((self.step - SPINS - YIELDS) / NAPS).min(DOUBLINGS);
            std::thread::sleep(NAP * (1 << doublings));
        }
        self.step = self.step.saturating_add(1);
    }

    /// Whether the thread has not waited yet.
    pub fn is_new(&self) -> bool {
        self.step == 0
    }

    /// Time since the first call of this function.
    pub fn elapsed(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}
