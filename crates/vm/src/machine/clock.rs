//! The guest's clock. QEMU's processor in software counts time as the host's does; a guest that has to find out how fast
//! that is measures wrongly on a machine with much else to do, by a factor of ten and more: its time flies, and its
//! kernel complains of processors that do not move. So it is told.

use std::time::{Duration, Instant};

/// A kernel's clock ticks so many times a second: Debian's do. With another one, its busy waits are longer or shorter.
const TICKS: u64 = 250;

/// The kernel's arguments that say how fast the processor's counter is, in kilohertz and per tick (which Linux 6.12 takes
/// seconds to find out for each processor); empty where that is not known.
pub(super) fn argument(count_instructions: bool) -> String {
    // A nanosecond an instruction.
    let kilohertz = if count_instructions { Some(1_000_000) } else { measured() };
    kilohertz.map_or(String::new(), |kilohertz| {
        format!("tsc_early_khz={kilohertz} lpj={}", kilohertz * 1000 / TICKS)
    })
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
        assert_eq!(argument(true), "tsc_early_khz=1000000 lpj=4000000");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn measurements_agree() {
        let (one, other) = (measured().unwrap(), measured().unwrap());
        assert!(one.abs_diff(other) < one / 1000, "{one} {other}");
    }
}
