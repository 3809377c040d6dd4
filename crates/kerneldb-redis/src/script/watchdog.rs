//! The watchdog of the script that runs: its deadline, and whether it has to end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mlua::{Error, Result};

/// Number of values that a native function reads between two looks at the clock.
pub(super) const VALUES_PER_CHECK: u32 = 1000;

/// Whether the script that runs has to end. The interpreter, its functions and its hook share it.
pub(super) struct Watchdog {
    created: Instant,
    /// Milliseconds from `created` until the script's deadline; `u64::MAX` while no script runs.
    deadline_ms: AtomicU64,
    timed_out: AtomicBool,
    /// A command has aborted the script.
    aborted: AtomicBool,
}

impl Watchdog {
    pub fn new() -> Watchdog {
        Watchdog {
            created: Instant::now(),
            deadline_ms: AtomicU64::new(u64::MAX),
            timed_out: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
        }
    }

    /// Begins the time of a script.
    pub fn start(&self, time: Duration) {
        let deadline = self.created.elapsed().saturating_add(time);
        self.deadline_ms.store(deadline.as_millis() as u64, Relaxed);
        self.timed_out.store(false, Relaxed);
        self.aborted.store(false, Relaxed);
    }

    /// Lets the interpreter work without a deadline. The script's state stays.
    pub fn rest(&self) {
        self.deadline_ms.store(u64::MAX, Relaxed);
    }

    /// Lets the script end, because a command has aborted it.
    pub fn abort(&self) {
        self.aborted.store(true, Relaxed);
    }

    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Relaxed)
    }

    pub fn has_timed_out(&self) -> bool {
        self.timed_out.load(Relaxed)
    }

    /// Looks at the clock.
    ///
    /// # Errors
    ///
    /// An error of the script, if it has to end.
    pub fn check(&self) -> Result<()> {
        if self.created.elapsed().as_millis() as u64 >= self.deadline_ms.load(Relaxed) {
            self.timed_out.store(true, Relaxed);
        }
        match self.is_aborted() || self.has_timed_out() {
            true => Err(Error::runtime("the script has to end")),
            false => Ok(()),
        }
    }
}
