//! The speed of the guest's clock. QEMU's software processor uses the host's counter. On a busy machine, a guest
//! that measures the counter's frequency may be wrong by a factor of ten or more. Its clock then runs too fast, and
//! its kernel reports stalled processors. The harness therefore passes the frequency to the guest.

use std::time::{Duration, Instant};

/// The kernel arguments with the frequency of the processor's counter, in kilohertz; empty if it is unknown. With
/// `ticks`, the timer frequency in ticks per second, they also contain the loops per tick. Linux 6.12 needs seconds
/// to measure these for a processor that starts late.
pub(super) fn arguments(count_instructions: bool, ticks: Option<u64>) -> String {
    // One instruction takes one nanosecond.
    let kilohertz = if count_instructions { Some(1_000_000) } else { measured() };
    let Some(kilohertz) = kilohertz else { return String::new() };
    let per_tick = ticks.map_or(String::new(), |ticks| format!(" lpj={}", kilohertz * 1000 / ticks));
    format!("tsc_early_khz={kilohertz}{per_tick}")
}

/// The frequency of the host's counter in kilohertz.
#[cfg(target_arch = "x86_64")]
fn measured() -> Option<u64> {
    // Reads both clocks at almost the same moment: the fastest of 20 tries.
    let both = || {
        let now = || {
            let before = Instant::now();
            // SAFETY: reads a counter.
            let count = unsafe { std::arch::x86_64::_rdtsc() };
            (before.elapsed(), before, count)
        };
        (0..20).map(|_| now()).min_by_key(|(took, ..)| *took)
    };
    let (_, begin, first) = both()?;
    std::thread::sleep(Duration::from_millis(20));
    let (_, end, last) = both()?;
    let nanoseconds = end.duration_since(begin).as_nanos();
    u64::try_from(u128::from(last.checked_sub(first)?) * 1_000_000 / nanoseconds).ok()
}

/// The harness knows only this counter of x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn measured() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_instructions_are_nanoseconds() {
        assert_eq!(arguments(true, None), "tsc_early_khz=1000000");
        assert_eq!(arguments(true, Some(250)), "tsc_early_khz=1000000 lpj=4000000");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn measurements_agree() {
        let (one, other) = (measured().unwrap(), measured().unwrap());
        assert!(one.abs_diff(other) < one / 1000, "{one} {other}");
    }
}
