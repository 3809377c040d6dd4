//! Durations of the operations of a store.
//!
//! Each kind of operation has a few histograms, and each thread uses one of them, so threads that commit at once seldom wait for
//! each other. The histograms have a fixed size: [`LATENCY_MAX`] is their longest duration, and longer ones count as that.
//!
//! Locks: the mutexes of the histograms are leaves, and are held for the update of one counter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Store;
use super::limits::LATENCY_MAX;

/// Number of histograms for each kind of operation.
const SHARDS: usize = 4;
/// Significant decimal digits of a duration.
const DIGITS: u8 = 2;

/// Durations of one kind of operation since the store was opened.
///
/// Each duration has an error of at most one percent. Durations above [`LATENCY_MAX`] count as that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// Number of operations.
    pub count: u64,
    /// The mean.
    pub mean: Duration,
    /// Half of the operations took at most this long.
    pub p50: Duration,
    /// 90 of 100 operations took at most this long.
    pub p90: Duration,
    /// 99 of 100 operations took at most this long.
    pub p99: Duration,
    /// 999 of 1000 operations took at most this long.
    pub p999: Duration,
    /// The longest duration.
    pub max: Duration,
}

/// Durations of a store's operations, of those that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latencies {
    /// Commits of transactions that wrote something: from the call until it returns. With
    /// [`Durability::Sync`](super::Durability::Sync) they include the wait for the log. The last attempt of
    /// [`Store::update`](super::Store::update) locks out other commits before its body runs. Its duration begins after the body.
    pub commits: Latency,
    /// Writes of the log, each with its fsync. One write serves all commits that wait for it.
    pub log_writes: Latency,
    /// Checkpoints, including the one at opening.
    pub checkpoints: Latency,
}

/// The durations of one kind of operation.
pub(crate) struct Recorder([Mutex<Histogram<u64>>; SHARDS]);

impl Recorder {
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::new(empty())))
    }

    /// Records the time since `begin`. Any thread may call it.
    pub fn record(&self, begin: Instant) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
        }
        let nanoseconds = begin.elapsed().min(LATENCY_MAX).as_nanos() as u64;
        let shard = SHARD.try_with(|shard| *shard).unwrap_or(0);
        lock(&self.0[shard]).saturating_record(nanoseconds);
    }

    fn latency(&self) -> Latency {
        let mut all = empty();
        for shard in &self.0 {
            all.add(&*lock(shard)).expect("histograms with the same bounds");
        }
        if all.is_empty() {
            return Latency::default();
        }
        let quantile = |quantile| Duration::from_nanos(all.value_at_quantile(quantile));
        Latency {
            count: all.len(),
            mean: Duration::from_nanos(all.mean() as u64),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: Duration::from_nanos(all.max()),
        }
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, DIGITS)
        .expect("bounds that a histogram can have")
}

fn lock(shard: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Durations of commits, log writes and checkpoints since the store was opened.
    pub fn latencies(&self) -> Latencies {
        Latencies {
            commits: self.commit_latency.latency(),
            log_writes: self.log.write_latency().latency(),
            checkpoints: self.checkpoint_latency.latency(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_all_threads_are_counted_and_a_long_one_counts_as_the_longest() {
        let recorder = Recorder::new();
        assert_eq!(recorder.latency(), Latency::default());
        let now = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| recorder.record(now));
            }
        });
        let latency = recorder.latency();
        assert_eq!(latency.count, 2 * SHARDS as u64);
        assert!(latency.p50 <= latency.p90 && latency.p999 <= latency.max);
        if let Some(long_ago) = now.checked_sub(LATENCY_MAX + Duration::from_secs(1)) {
            recorder.record(long_ago);
            let max = recorder.latency().max;
            assert!(max.abs_diff(LATENCY_MAX) <= LATENCY_MAX / 100, "{max:?}");
        }
    }
}
