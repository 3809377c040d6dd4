//! Waiting for a page that somebody else holds: shortly by spinning, then by letting others run, then asleep, for a page
//! may be held as long as a read from storage takes.

use std::time::{Duration, Instant};

/// How often to spin before letting others run.
const SPINS: u32 = 6;
/// How often to let others run before sleeping.
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
/// How many naps are of the same length, and how often that doubles: so a nap is a part of the time waited so far, and 3
/// milliseconds at most.
const NAPS: u32 = 8;
const DOUBLINGS: u32 = 6;

/// Waits longer each time.
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

    /// How long it has been since this was asked first.
    pub fn elapsed(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}
