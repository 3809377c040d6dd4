//! A histogram of the time for which snapshots made writers wait. Each bound is twice the previous one.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Statistics;

/// The binary logarithm of the first bound.
const FIRST: u32 = 13;

/// The bounds of the histogram in nanoseconds, from 8 microseconds to 8.6 seconds. A pause is counted at the first bound
/// that it does not exceed.
pub const PAUSE_BOUNDS: [u64; 21] = {
    let mut bounds = [0; 21];
    let mut index = 0;
    while index < bounds.len() {
        bounds[index] = 1 << (FIRST as usize + index);
        index += 1;
    }
    bounds
};

/// A histogram of pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// The sum of all pauses, in nanoseconds.
    pub total_ns: u64,
    /// Number of pauses for each bound of [`PAUSE_BOUNDS`]: those that exceed the previous bound but not this one.
    /// The last number counts the pauses that exceed all bounds.
    pub counts: [u64; PAUSE_BOUNDS.len() + 1],
}

impl Pauses {
    /// Number of all pauses.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// The counters of an engine.
#[derive(Default)]
pub(crate) struct PauseCounters {
    latest_ns: AtomicU64,
    longest_ns: AtomicU64,
    total_ns: AtomicU64,
    counts: [AtomicU64; PAUSE_BOUNDS.len() + 1],
}

impl PauseCounters {
    /// Records a pause of this many nanoseconds.
    pub fn record(&self, ns: u64) {
        self.latest_ns.store(ns, Ordering::Relaxed);
        self.longest_ns.fetch_max(ns, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        self.counts[index(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the counters to `statistics`.
    pub fn fill(&self, statistics: &mut Statistics) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        statistics.latest_pause_ns = get(&self.latest_ns);
        statistics.longest_pause_ns = get(&self.longest_ns);
        statistics.pauses =
            Pauses { total_ns: get(&self.total_ns), counts: std::array::from_fn(|n| get(&self.counts[n])) };
    }
}

/// The index at which a pause is counted.
fn index(ns: u64) -> usize {
    let log = u64::BITS - ns.saturating_sub(1).leading_zeros();
    (log.saturating_sub(FIRST) as usize).min(PAUSE_BOUNDS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_counted_at_the_first_bound_that_it_does_not_exceed() {
        for (number, bound) in PAUSE_BOUNDS.into_iter().enumerate() {
            assert_eq!((index(bound), index(bound + 1)), (number, number + 1), "{bound}");
        }
        assert_eq!((index(0), index(1), index(u64::MAX)), (0, 0, PAUSE_BOUNDS.len()));
    }

    #[test]
    fn statistics_have_the_latest_the_longest_and_all_pauses() {
        let counters = PauseCounters::default();
        for ns in [5_000, 300_000, 20_000] {
            counters.record(ns);
        }
        let mut statistics = Statistics::default();
        counters.fill(&mut statistics);
        assert_eq!((statistics.latest_pause_ns, statistics.longest_pause_ns), (20_000, 300_000));
        assert_eq!((statistics.pauses.count(), statistics.pauses.total_ns), (3, 325_000));
        let mut expected = [0; PAUSE_BOUNDS.len() + 1];
        // At most 8192, 32768 and 524288 nanoseconds.
        (expected[0], expected[2], expected[6]) = (1, 1, 1);
        assert_eq!(statistics.pauses.counts, expected);
    }
}
