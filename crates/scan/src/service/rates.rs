//! The device's speed and the worker's pace, and the times and counts that follow from them (paper 3.4.3).

/// A recent average, in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate(Option<f64>);

/// The weight of a new sample.
const WEIGHT: f64 = 0.25;
/// The accepted range of nanoseconds per byte: from a petabyte per second to a byte per second. Workers may report anything.
const BELIEVED: std::ops::RangeInclusive<f64> = 1e-6..=1e9;
/// Maximum delay: an hour in nanoseconds.
const LONGEST: f64 = 3600e9;
/// Maximum number of pages ahead. No memory has room for that many.
const FARTHEST: f64 = 1e9;

impl Rate {
    /// Records the number of bytes and the time that they took.
    pub fn sample(&mut self, bytes: u64, ns: u64) {
        if bytes == 0 {
            return;
        }
        // The average is over times, because times add up: a page that takes ten times longer counts as much as ten pages.
        let ns_per_byte = (ns.max(1) as f64 / bytes as f64).clamp(*BELIEVED.start(), *BELIEVED.end());
        self.0 = Some(match self.0 {
            None => ns_per_byte,
            Some(before) => before + WEIGHT * (ns_per_byte - before),
        });
    }

    /// Bytes per second; `None` before the first sample.
    pub fn per_second(self) -> Option<f64> {
        self.0.map(|ns_per_byte| 1e9 / ns_per_byte)
    }
}

/// Equation 1: the delay after the completion of a request of `bytes` until the next release, in nanoseconds. With it, data
/// arrives as fast as it is ingested. With `reward` requests at a time, each of them only delivers its part.
pub fn release_delay(bytes: u64, device: f64, ingest: f64, reward: usize) -> u64 {
    // N·(S_d − S_u)/(S_d·S_u) = N/S_u − N/S_d
    let seconds = bytes as f64 * (reward as f64 / ingest - 1.0 / device);
    (seconds * 1e9).clamp(0.0, LONGEST) as u64
}

/// The number of requests that are needed at a time: until S_u ≤ R·S_d.
pub fn reward(device: f64, ingest: f64, most: usize) -> usize {
    ((ingest / device).ceil() as usize).clamp(1, most)
}

/// The tick in which the slow timers run, in nanoseconds: the paper's jiffy.
pub const TICK: u64 = 4_000_000;

/// Number of pages of `bytes` that must be ready or in flight so that the worker does not wait. These are the pages that it
/// ingests during one read, and during `ticks` more ticks of the slow timers.
pub fn ahead(bytes: u64, latency_ns: u64, ingest: f64, ticks: u64) -> usize {
    let window = (latency_ns + ticks * TICK) as f64 / 1e9 * ingest;
    (window / bytes.max(1) as f64).ceil().min(FARTHEST) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    #[test]
    fn equation_1_fills_the_interval() {
        let bytes = 2_000_000;
        // The device takes 10 ms for a page, the worker 40 ms.
        assert_eq!(release_delay(bytes, 200.0 * MB, 50.0 * MB, 1), 30_000_000);
        // If both are equally fast, or the worker is faster, the release is immediate.
        assert_eq!(release_delay(bytes, 200.0 * MB, 200.0 * MB, 1), 0);
        assert_eq!(release_delay(bytes, 200.0 * MB, 300.0 * MB, 1), 0);
        // There are two requests of 10 ms each at a time, and the worker ingests one in 6.67 ms. So each rests for 3.33 ms.
        let delay = release_delay(bytes, 200.0 * MB, 300.0 * MB, 2);
        assert!((3_333_000..3_334_000).contains(&delay), "{delay}");
    }

    #[test]
    fn rewards_are_added_until_the_worker_is_not_faster() {
        assert_eq!(reward(200.0, 100.0, 8), 1);
        assert_eq!(reward(200.0, 200.0, 8), 1);
        assert_eq!(reward(200.0, 201.0, 8), 2);
        assert_eq!(reward(200.0, 1000.0, 8), 5);
        assert_eq!(reward(200.0, 1e12, 8), 8);
    }

    #[test]
    fn rates_follow_what_happens() {
        let mut rate = Rate::default();
        assert!(rate.per_second().is_none());
        rate.sample(2_000_000, 10_000_000);
        assert!((rate.per_second().unwrap() - 200.0 * MB).abs() < 1.0);
        for _ in 0..30 {
            rate.sample(2_000_000, 40_000_000);
        }
        let now = rate.per_second().unwrap();
        assert!((49.9 * MB..50.1 * MB).contains(&now), "{now}");
        rate.sample(0, 1);
        rate.sample(1, 0);
        assert!(rate.per_second().unwrap().is_finite());
    }

    /// For any values from a worker, the results can be added to a time and a count.
    #[test]
    fn nothing_that_is_said_is_too_much() {
        for (bytes, ns) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX), (1, 0)] {
            let mut rate = Rate::default();
            rate.sample(bytes, ns);
            let pace = rate.per_second().unwrap();
            assert!(ahead(1, 1 << 50, pace, 3) < usize::MAX >> 1);
            assert!((1..=8).contains(&reward(200.0 * MB, pace, 8)));
            assert!(release_delay(2 << 20, 1.0, pace, 8) <= LONGEST as u64);
            assert!(release_delay(2 << 20, 1e15, pace / 1e12, 8) <= LONGEST as u64);
        }
    }

    #[test]
    fn the_window_grows_with_the_pace() {
        let (bytes, latency) = (2 << 20, 12_000_000);
        assert_eq!(ahead(bytes, latency, 35.0 * MB, 2), 2);
        assert_eq!(ahead(bytes, latency, 350.0 * MB, 2), 5);
        assert!(ahead(bytes, latency, 1e12, 2) > 1000);
    }
}
