//! Limits on the duration of transactions and snapshots. They can be changed while the database is in use.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::limits;

/// The limits on age and idleness of transactions, and on the age of snapshots. They can be read and changed from
/// any thread; a change takes effect within milliseconds, also for transactions that are open.
///
/// A transaction that exceeds a limit is rolled back and releases its locks; its next operator fails with
/// [`crate::Error::TimedOut`]. A commit that has passed its commit point is not affected. A snapshot that is older
/// than its grace period gives way to a writer that finds no free version slot: the next read fails with
/// [`crate::Error::SnapshotTooOld`].
#[derive(Debug)]
pub struct Timeouts {
    /// Milliseconds after BEGIN at which a transaction is rolled back; 0 = never.
    pub transaction_ms: AtomicU64,
    /// Milliseconds without an operator after which a transaction is rolled back; 0 = never.
    pub idle_ms: AtomicU64,
    /// Milliseconds after which the snapshot of a read-only transaction gives way to a writer; 0 = never.
    pub snapshot_grace_ms: AtomicU64,
    /// The same for the snapshots of checkpoints, dumps and scans.
    pub scan_grace_ms: AtomicU64,
}

impl Default for Timeouts {
    fn default() -> Self {
        let ms = |limit: Duration| AtomicU64::new(limit.as_millis() as u64);
        Timeouts {
            transaction_ms: ms(limits::TRANSACTION_TIMEOUT),
            idle_ms: ms(limits::TRANSACTION_IDLE_TIMEOUT),
            snapshot_grace_ms: ms(limits::SNAPSHOT_GRACE),
            scan_grace_ms: ms(limits::SCAN_GRACE),
        }
    }
}

impl Timeouts {
    /// The limits on age and idleness of transactions in nanoseconds.
    pub(crate) fn transaction_ns(&self) -> (u64, u64) {
        (nanoseconds(&self.transaction_ms), nanoseconds(&self.idle_ms))
    }

    /// The grace periods of snapshots and of scans in nanoseconds.
    pub(crate) fn grace_ns(&self) -> (u64, u64) {
        (nanoseconds(&self.snapshot_grace_ms), nanoseconds(&self.scan_grace_ms))
    }

    /// Interval at which transactions must be checked.
    pub(crate) fn reap_interval(&self) -> Duration {
        let (age, idle) = self.transaction_ns();
        (Duration::from_nanos(age.min(idle)) / limits::REAP_CHECKS_PER_LIMIT)
            .clamp(limits::REAP_INTERVAL_MIN, limits::REAP_INTERVAL_MAX)
    }
}

/// A limit in nanoseconds; the largest number if there is none.
fn nanoseconds(limit_ms: &AtomicU64) -> u64 {
    match limit_ms.load(Relaxed) {
        0 => u64::MAX,
        ms => ms.saturating_mul(1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_means_never_and_the_shortest_limit_decides_how_often_to_look() {
        let timeouts = Timeouts::default();
        assert_eq!(timeouts.reap_interval(), limits::REAP_INTERVAL_MAX);
        timeouts.idle_ms.store(800, Relaxed);
        assert_eq!(timeouts.reap_interval(), Duration::from_millis(100));
        timeouts.transaction_ms.store(1, Relaxed);
        assert_eq!(timeouts.reap_interval(), limits::REAP_INTERVAL_MIN);
        timeouts.transaction_ms.store(0, Relaxed);
        timeouts.idle_ms.store(0, Relaxed);
        assert_eq!(timeouts.transaction_ns(), (u64::MAX, u64::MAX));
        assert_eq!(timeouts.reap_interval(), limits::REAP_INTERVAL_MAX);
        timeouts.scan_grace_ms.store(u64::MAX, Relaxed);
        assert_eq!(timeouts.grace_ns().1, u64::MAX);
    }
}
