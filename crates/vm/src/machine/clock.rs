//! The guest's clock. QEMU's processor in software counts time as the host's does; a guest that has to find out how fast
//! that is measures wrongly on a machine with much else to do, by a factor of ten and more: its time flies, and its
//! kernel complains of processors that do not move. So it is told.

use std::time::{Duration, Instant};

/// The kernel's arguments that say how fast the processor's counter is, in kilohertz; empty where that is not known. With
/// `ticks`, how many times a second the kernel's clock ticks, also per tick: Linux 6.12 takes seconds to find that out for
/// a processor that starts late.
pub(super) fn arguments(count_instructions: bool, ticks: Option<u64>) -> String {
    // A nanosecond an instruction.
    let kilohertz = if count_instructions { Some(1_000_000) } else { measured() };
    let Some(kilohertz) = kilohertz else { return String::new() };
    let per_tick = ticks.map_or(String::new(), |ticks| format!(" lpj={}", kilohertz * 1000 / ticks));
    format!("tsc_early_khz={kilohertz}{per_tick}")
}

/// How fast the host's counter is.
#[cfg(target_arch = "x86_64")]
fn measured() -> Option<u64> {
    // Both clocks at one moment, or almost: the best of some tries.
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

/// Only this architecture's counter is passed on.
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
