//! How long snapshots held up writers: a histogram with fixed bounds, each twice the one before.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Statistics;

/// The logarithm of the first bound.
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

/// Pauses by their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// All of them together, in nanoseconds.
    pub total_ns: u64,
    /// How many exceed the bound before and not this one, in the order of [`PAUSE_BOUNDS`]; the last number counts those
    /// that exceed all bounds.
    pub counts: [u64; PAUSE_BOUNDS.len() + 1],
}

impl Pauses {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// The engine's own numbers.
#[derive(Default)]
pub(crate) struct PauseCounters {
    latest_ns: AtomicU64,
    longest_ns: AtomicU64,
    total_ns: AtomicU64,
    counts: [AtomicU64; PAUSE_BOUNDS.len() + 1],
}

impl PauseCounters {
    /// A snapshot held up writers for so long.
    pub fn record(&self, ns: u64) {
        self.latest_ns.store(ns, Ordering::Relaxed);
        self.longest_ns.fetch_max(ns, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        self.counts[index(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Fills in what statistics say of pauses.
    pub fn fill(&self, statistics: &mut Statistics) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        statistics.latest_pause_ns = get(&self.latest_ns);
        statistics.longest_pause_ns = get(&self.longest_ns);
        statistics.pauses =
            Pauses { total_ns: get(&self.total_ns), counts: std::array::from_fn(|n| get(&self.counts[n])) };
    }
}

/// Where a pause is counted.
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
