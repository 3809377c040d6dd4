//! Nanoseconds without a system call, from the processor's time-stamp counter where it can be trusted.
//!
//! The counter can be trusted on two conditions. It runs at one rate in all states of all processors, according to CPUID. Two
//! measurements of the rate agree. Otherwise a thread reads the kernel's monotonic clock, which needs no system call either where
//! the vDSO works. All processes of a machine share either clock, so times on a board have the same meaning for both sides.

use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The source of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Nanoseconds per tick of the counter, times 2^32. 0: the kernel's clock is the source.
    multiplier: u64,
}

impl Clock {
    /// The best clock of this machine. The process measures it once, in about 1 ms.
    pub fn best() -> Self {
        static BEST: OnceLock<Clock> = OnceLock::new();
        *BEST.get_or_init(|| Self { multiplier: counter::multiplier().unwrap_or(0) })
    }

    /// The kernel's monotonic clock.
    pub fn monotonic() -> Self {
        Self { multiplier: 0 }
    }

    /// Whether this is the processor's counter.
    pub fn is_counter(self) -> bool {
        self.multiplier != 0
    }

    pub(crate) fn multiplier(self) -> u64 {
        self.multiplier
    }

    pub(crate) fn from_multiplier(multiplier: u64) -> Self {
        Self { multiplier }
    }

    /// Nanoseconds since an arbitrary moment in the past. The value does not decrease on one processor.
    pub fn now(self) -> u64 {
        match self.multiplier {
            0 => monotonic(),
            multiplier => ((u128::from(counter::read()) * u128::from(multiplier)) >> 32) as u64,
        }
    }
}

/// The kernel's monotonic clock, in nanoseconds.
pub(crate) fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use super::{ClockId, Duration, clock_gettime};

    /// Reads the counter.
    pub fn read() -> u64 {
        // SAFETY: `rdtsc` has no preconditions, and Linux lets programs execute it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    /// Measures the multiplier. `None`: the counter cannot be trusted.
    pub fn multiplier() -> Option<u64> {
        if !is_invariant() {
            return None;
        }
        let (first, second) = (measure(), measure());
        // The tolerance is two parts in a thousand. This is much less than the uncertainty of a disk's rate, and much more than
        // the deviation of a steady counter. A preemption between the two reads of a measurement exceeds it, too. Then the
        // kernel's clock is good enough.
        (first.abs_diff(second) < first / 500).then_some(first / 2 + second / 2)
    }

    fn is_invariant() -> bool {
        use std::arch::x86_64::__cpuid;
        const INVARIANT: u32 = 1 << 8;
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & INVARIANT != 0
    }

    fn measure() -> u64 {
        let (ticks, ns) = both();
        // The error of each of the two moments is some tens of nanoseconds.
        std::thread::sleep(Duration::from_micros(400));
        let (later_ticks, later_ns) = both();
        (((later_ns - ns) << 32) / (later_ticks.wrapping_sub(ticks)).max(1)).max(1)
    }

    /// Reads both clocks at one moment: five attempts, and the result of the shortest one.
    fn both() -> (u64, u64) {
        let attempts = (0..5).map(|_| {
            let before = read();
            let time = clock_gettime(ClockId::MonotonicRaw);
            let after = read();
            (after.wrapping_sub(before), before, time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
        });
        let (width, before, ns) = attempts.min().expect("there are five");
        (before + width / 2, ns)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub fn read() -> u64 {
        0
    }

    pub fn multiplier() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_with_the_kernel() {
        for clock in [Clock::best(), Clock::monotonic()] {
            let (start, kernel) = (clock.now(), monotonic());
            std::thread::sleep(Duration::from_millis(30));
            let (passed, expected) = (clock.now() - start, monotonic() - kernel);
            let ratio = passed as f64 / expected as f64;
            assert!((0.95..1.05).contains(&ratio), "{clock:?}: {passed} ns instead of {expected}");
        }
    }
}
