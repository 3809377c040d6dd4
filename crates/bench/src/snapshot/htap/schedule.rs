//! The times at which transactions are due, and their rate. Nothing here reads a clock.

use std::time::Duration;

/// The share of the calibrated capacity that may be due.
const SHARE: f64 = 0.5;

/// The largest rate of one writer, in transactions per second. A writer sleeps between two transactions, which takes up to
/// some ten microseconds on virtual machines. A closed loop does not sleep, and writes at the speed of memory once every page
/// of a snapshot has been copied. Half of that rate would keep a processor busy even without snapshots.
pub const RATE_PER_WRITER_MAX: f64 = 10_000.0;

/// The times at which one writer's transactions are due: at a fixed rate, whatever the machine does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    first_ns: f64,
    interval_ns: f64,
}

impl Schedule {
    /// The schedule of one of several writers, which together have `rate` transactions due in a second. The writers take
    /// turns: no two of them have a transaction due at the same moment.
    pub fn new(rate: f64, writers: usize, writer: usize) -> Self {
        let turn_ns = 1e9 / rate;
        Self { first_ns: turn_ns * writer as f64, interval_ns: turn_ns * writers as f64 }
    }

    /// The schedule of a closed loop: every transaction is due at once.
    pub fn closed_loop() -> Self {
        Self { first_ns: 0.0, interval_ns: 0.0 }
    }

    /// The time at which a transaction is due, in nanoseconds from the beginning.
    pub fn due_ns(self, transaction: u64) -> u64 {
        // A product, not a sum, so that a rounding error does not grow.
        (self.first_ns + self.interval_ns * transaction as f64) as u64
    }
}

/// The latency of a transaction that ended at `now_ns`: from the moment it was due.
pub fn latency_ns(due_ns: u64, now_ns: u64) -> u64 {
    now_ns.saturating_sub(due_ns)
}

/// Time for which a writer waits for a transaction that is due at `due_ns`; `None` if it is overdue.
pub fn wait(due_ns: u64, now_ns: u64) -> Option<Duration> {
    (now_ns < due_ns).then(|| Duration::from_nanos(due_ns - now_ns))
}

/// The rate for a machine whose writers execute `capacity` transactions per second in a closed loop. It is at most half of
/// the capacity, and at most [`RATE_PER_WRITER_MAX`] for each writer. It is rounded down to 1, 2 or 5 times a power of ten,
/// so that runs on one machine have the same rate. `None` without a capacity.
pub fn rate_for(capacity: f64, writers: usize) -> Option<f64> {
    if !(capacity.is_finite() && capacity > 0.0) {
        return None;
    }
    let most = (capacity * SHARE).min(RATE_PER_WRITER_MAX * writers as f64);
    let power = 10f64.powi(most.log10().floor() as i32);
    // The logarithm of a power of ten may be rounded up.
    [5.0, 2.0, 1.0, 0.5].into_iter().map(|step| step * power).find(|rate| *rate <= most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writers_take_turns_at_the_rate_of_all() {
        let writers = [0, 1].map(|writer| Schedule::new(1000.0, 2, writer));
        let due: Vec<_> = (0..3).flat_map(|i| writers.map(|writer| writer.due_ns(i))).collect();
        assert_eq!(due, [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]);
    }

    #[test]
    fn due_times_do_not_drift() {
        // No interval loses a third of a nanosecond.
        let schedule = Schedule::new(3.0, 1, 0);
        assert_eq!(schedule.due_ns(3_000_000), 1_000_000_000_000_000);
    }

    #[test]
    fn a_pause_is_charged_to_every_transaction_that_was_due_in_it() {
        // The writer stands still from 0 to 10 ms, and executes the ten overdue transactions at once.
        let schedule = Schedule::new(1000.0, 1, 0);
        let latencies: Vec<_> = (0..10).map(|i| latency_ns(schedule.due_ns(i), 10_000_000)).collect();
        let expected: Vec<_> = (1..=10).rev().map(|ms| ms * 1_000_000).collect();
        assert_eq!(latencies, expected);
    }

    #[test]
    fn a_writer_waits_for_what_is_not_due_yet_only() {
        assert_eq!(wait(100, 40), Some(Duration::from_nanos(60)));
        assert_eq!((wait(100, 100), wait(100, 101)), (None, None));
        // A transaction that ended before it was due on another processor's clock has no latency.
        assert_eq!(latency_ns(100, 99), 0);
        let closed = Schedule::closed_loop();
        assert_eq!(wait(closed.due_ns(1_000_000), 0), None);
    }

    #[test]
    fn rates_are_round_and_at_most_half() {
        for (capacity, rate) in
            [(2000.0, 1000.0), (1999.0, 500.0), (99_999.0, 20_000.0), (100_000.0, 50_000.0)]
        {
            assert_eq!(rate_for(capacity, 5), Some(rate), "{capacity}");
        }
        for nothing in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(rate_for(nothing, 5), None);
        }
    }

    #[test]
    fn a_writer_has_time_to_sleep_however_fast_a_closed_loop_is() {
        for (writers, rate) in [(1, 10_000.0), (2, 20_000.0), (4, 20_000.0), (5, 50_000.0)] {
            assert_eq!(rate_for(1e9, writers), Some(rate), "{writers}");
        }
    }

    proptest! {
        #[test]
        fn a_rate_is_between_a_fifth_and_a_half_of_the_capacity(capacity in 1e-3f64..1e12) {
            let rate = rate_for(capacity, usize::MAX).unwrap();
            prop_assert!(rate <= capacity / 2.0 && rate >= capacity * 0.199, "{capacity} {rate}");
        }
    }
}
