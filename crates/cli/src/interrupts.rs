//! Interrupts a benchmark: the first SIGINT or SIGTERM ends it after its current step, a second one at once.
//!
//! A step ends by unwinding, so that the owners of files, processes and settings of the machine remove or restore them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of a command that a signal has ended: the one that shells use for SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Whether a signal has arrived.
pub struct Interrupts(Arc<AtomicBool>);

/// The payload with which the work unwinds.
struct Unwinding;

impl Interrupts {
    /// Makes the first signal only set a flag.
    pub fn catch() -> anyhow::Result<Self> {
        let arrived = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // This order is needed because the first signal must find that none has arrived.
            flag::register_conditional_shutdown(signal, INTERRUPTED.into(), arrived.clone())
                .context("handling signals")?;
            flag::register(signal, arrived.clone()).context("handling signals")?;
        }
        Ok(Self(arrived))
    }

    /// Ends [`Self::run`] if a signal has arrived.
    pub fn check(&self) {
        if self.0.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Unwinding));
        }
    }

    /// Does work that calls [`Self::check`]. Returns `None` if a signal has ended it, or has ended a process that it needed.
    pub fn run<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Err(_)) if self.0.load(Ordering::Relaxed) => None,
            Ok(done) => Some(done),
            Err(payload) if payload.is::<Unwinding>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }
}
