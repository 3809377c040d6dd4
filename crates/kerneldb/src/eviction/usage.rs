//! The usage of keys: how the byte of an entry stands for the time since the last access, or for the number of accesses, and
//! how it changes with time.
//!
//! The eBPF operators set the byte at an access (`bpf/engine/arena/usage.h`). The evictor's thread calls these functions for
//! every entry from time to time. A byte has few values, so most changes are smaller than one step. Then the step is made with
//! the probability that makes the average right.

use std::{sync::LazyLock, time::Duration};

use crate::layout::{KDB_USAGE_COUNT_NEW, KDB_USAGE_MAX};

/// The shortest idle time of each step, in milliseconds. Steps grow by 4.5 %, from 0.09 s to two hours.
static IDLE_STEPS: LazyLock<[u64; 256]> =
    LazyLock::new(|| std::array::from_fn(|step| (2000.0 * (1.045f64.powi(step as i32) - 1.0)) as u64));

/// The step of an idle time.
fn idle_step(ms: u64) -> u8 {
    (IDLE_STEPS.partition_point(|start| *start <= ms) - 1) as u8
}

/// The time for which a key was idle.
pub(super) fn idle_time(usage: u8) -> Duration {
    Duration::from_millis(IDLE_STEPS[usize::from(usage)])
}

/// The usage of a key that was idle for `ms` milliseconds more. `random` is drawn for each call.
pub(super) fn grow_idle(usage: u8, ms: u64, random: u32) -> u8 {
    if u32::from(usage) == KDB_USAGE_MAX {
        return usage;
    }
    let part = |whole: u64| (whole * u64::from(random)) >> 32;
    let (start, end) = (IDLE_STEPS[usize::from(usage)], IDLE_STEPS[usize::from(usage) + 1]);
    if usage == 0 && ms > end {
        // The last access was at any moment of this time.
        return idle_step(part(ms).max(end));
    }
    idle_step(start + part(end - start) + ms)
}

/// The usage of a key whose accesses were counted, after `ms` milliseconds of a decay by 1 in `minutes`; 0 = no decay.
pub(super) fn decay_count(usage: u8, ms: u64, minutes: u32, random: u32) -> u8 {
    if minutes == 0 {
        return usage;
    }
    let unit = u128::from(minutes) * 60_000;
    let steps = (u128::from(ms) + ((unit * u128::from(random)) >> 32)) / unit;
    usage.saturating_sub(u8::try_from(steps).unwrap_or(u8::MAX))
}

/// The usage of a new key whose accesses are counted.
pub(super) const NEW_COUNT: u8 = KDB_USAGE_COUNT_NEW as u8;

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    #[test]
    fn steps_cover_a_day() {
        assert_eq!(idle_step(0), 0);
        assert!(IDLE_STEPS.windows(2).all(|pair| pair[0] < pair[1]));
        for step in 0..=255u8 {
            assert_eq!(idle_step(IDLE_STEPS[usize::from(step)]), step);
        }
        assert_eq!(idle_step(u64::MAX), 255);
        assert!(idle_time(255) > Duration::from_secs(40 * 3600));
        assert!(idle_time(1) < Duration::from_millis(100));
    }

    /// Many small additions lead to the idle time that passed, on average.
    #[test]
    fn idle_time_passes_as_it_should() {
        let mut random = SmallRng::seed_from_u64(7);
        for (pass_ms, passes) in [(100u64, 30u64), (100, 600), (1000, 300), (1000, 3600), (8000, 2000)] {
            let total = pass_ms * passes;
            let keys = 300;
            let sum: u64 = (0..keys)
                .map(|_| {
                    let usage = (0..passes).fold(0, |usage, _| grow_idle(usage, pass_ms, random.random()));
                    idle_time(usage).as_millis() as u64
                })
                .sum();
            let mean = sum / keys;
            assert!(mean > total * 8 / 10 && mean < total * 12 / 10, "{pass_ms} ms: {mean} of {total}");
        }
    }

    #[test]
    fn counts_decay_by_the_minute() {
        let mut random = SmallRng::seed_from_u64(7);
        let mut average = |ms, passes, minutes| {
            let decayed =
                |_| (0..passes).fold(200u8, |usage, _| decay_count(usage, ms, minutes, random.random()));
            (0..2000).map(decayed).map(u32::from).sum::<u32>() / 2000
        };
        assert!((189..=191).contains(&average(1000, 600, 1)), "ten minutes");
        assert!((194..=196).contains(&average(1000, 600, 2)));
        assert_eq!(average(1_000_000, 600, 0), 200, "no decay");
        assert_eq!(decay_count(3, 3_600_000, 1, 0), 0);
        assert_eq!(decay_count(3, u64::MAX, u32::MAX, u32::MAX), 0);
    }
}
