//! Instructions where the time stamp counts them, nanoseconds elsewhere.

use std::arch::asm;
use std::arch::x86_64::_rdtsc;
use std::time::Instant;

use crate::Result;

/// The unit of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Instructions,
    Nanoseconds,
}

impl Clock {
    /// Times a loop of known length. Only a clock that counts instructions is right repeatedly. (It is not right
    /// every time, because an interrupt may come in between.)
    pub fn detect() -> Clock {
        const LOOPS: u64 = 100_000;
        const TRIES: usize = 9;
        let right = (0..TRIES).filter(|_| {
            let before = stamp();
            // SAFETY: counts a register down.
            unsafe { asm!("2: dec {0}", "jnz 2b", inout(reg) LOOPS => _, options(nomem, nostack)) };
            let counted = (stamp() - before) as f64 / (2 * LOOPS) as f64;
            (0.9999..1.001).contains(&counted)
        });
        if right.count() > TRIES / 2 { Clock::Instructions } else { Clock::Nanoseconds }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Clock::Instructions => "instructions",
            Clock::Nanoseconds => "nanoseconds",
        }
    }

    /// The suffix of a figure's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Clock::Instructions => "_insns",
            Clock::Nanoseconds => "_ns",
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Clock::Instructions => "cost_insns",
            Clock::Nanoseconds => "cost_ns",
        }
    }

    /// The cost of one of the `operations` that `work` does.
    pub fn time(self, operations: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let total = match self {
            Clock::Instructions => {
                let before = stamp();
                work()?;
                (stamp() - before) as f64
            }
            Clock::Nanoseconds => {
                let before = Instant::now();
                work()?;
                before.elapsed().as_nanos() as f64
            }
        };
        Ok(total / operations as f64)
    }
}

fn stamp() -> u64 {
    // SAFETY: every x86-64 processor has it, and rings 0 and 3 may read it.
    unsafe { _rdtsc() }
}
