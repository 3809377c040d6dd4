//! Latency histograms: three significant digits from 1 ns to 60 s, merged over threads.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Fields;

/// A histogram of latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

const LONGEST_NS: u64 = 60_000_000_000;

impl Default for Latencies {
    fn default() -> Self {
        Latencies(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds are valid"))
    }
}

impl Latencies {
    /// Counts one latency. A latency above 60 s counts as 60 s.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("equal bounds");
    }

    /// Latencies and their counts.
    fn recorded(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }

    /// Number of latencies counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `percent` in 100 do not exceed, in nanoseconds; 0 without any.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.0.value_at_percentile(percent)
    }

    /// Smallest latency in nanoseconds.
    pub fn min(&self) -> u64 {
        self.0.min()
    }

    /// Largest latency in nanoseconds.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// Adds p50, p99, p99.9 and the maximum to a row.
    pub fn fill(&self, row: &mut Fields) {
        row.set("p50_ns", self.percentile(50.0));
        row.set("p99_ns", self.percentile(99.0));
        row.set("p999_ns", self.percentile(99.9));
        row.set("max_ns", self.max());
    }
}

/// Pairs of a latency in nanoseconds and its count.
impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.recorded().serialize(serializer)
    }
}

impl<'a> Deserialize<'a> for Latencies {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        let mut all = Latencies::default();
        for (ns, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            all.0.saturating_record_n(ns.max(1), count);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_distribution() {
        let (mut a, mut b) = (Latencies::default(), Latencies::default());
        for i in 1..=1000u64 {
            if i % 2 == 0 { a.record(i * 1000) } else { b.record(i * 1000) }
        }
        a.merge(&b);
        assert_eq!(a.count(), 1000);
        for (percent, expected) in [(50.0, 500_000.0), (99.0, 990_000.0), (99.9, 999_000.0)] {
            let got = a.percentile(percent) as f64;
            assert!((got / expected - 1.0).abs() < 0.002, "p{percent} is {got}");
        }
    }

    #[test]
    fn what_another_process_counted_arrives() {
        let mut sent = Latencies::default();
        (1..=3000u64).for_each(|i| sent.record(i * i));
        let arrived: Latencies = serde_json::from_str(&serde_json::to_string(&sent).unwrap()).unwrap();
        assert_eq!(arrived.count(), sent.count());
        for percent in [0.0, 1.0, 50.0, 99.9, 100.0] {
            assert_eq!(arrived.percentile(percent), sent.percentile(percent));
        }
    }

    #[test]
    fn extremes_are_kept_within_bounds() {
        let mut h = Latencies::default();
        h.record(0);
        h.record(u64::MAX);
        assert_eq!(h.count(), 2);
        assert_eq!(h.min(), 1);
        assert!(h.max() as f64 > LONGEST_NS as f64 * 0.99);
    }
}
