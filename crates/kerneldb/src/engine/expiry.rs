//! State that the active expiry and the storage engines share: the keys that were read, and the figures of the
//! thread.
//!
//! Lock: `Expiry::gate`, before `housekeeping`. The thread of the active expiry holds it while it reads a piece and
//! deletes its expired keys. Recovery and verification must run alone, so they hold it or close the gate.

use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

use crate::{Config, Error, Result, limits::EXPIRE_EFFORT_MAX};

/// Expired keys in percent of the keys read, up to which the time is not raised at the lowest effort.
const ACCEPTED_STALE_PERCENT: u64 = 10;

/// Sessions that a database has: those of its users, one each for the active expiry and for eviction, and one for the handlers of
/// each processor.
pub(crate) fn sessions(config: &Config, cpus: u32) -> u32 {
    handler_sessions(config) + cpus
}

/// The session of the handlers on the first processor; those of the other processors follow.
pub(crate) fn handler_sessions(config: &Config) -> u32 {
    config.max_sessions + 2
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Processor time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Figures of the active expiry since the database was created.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpiryStats {
    /// Keys that the active expiry has deleted.
    pub deleted: u64,
    /// Estimated percentage of expired keys among the keys with an expiry.
    pub stale_percent: f64,
    /// Periods that ended at the bound of processor time while many keys were expired.
    pub time_cap_reached: u64,
    /// Average time to live of the keys with an expiry in milliseconds, as of the last complete pass.
    pub average_ttl_ms: u64,
    /// Processor time that the thread has used.
    pub cpu_time: Duration,
}

/// State that the thread and its database share.
pub(crate) struct Expiry {
    effort: AtomicU32,
    /// Whether the gate is closed: no key is deleted until it is opened.
    gate: Mutex<bool>,
    pub deleted: AtomicU64,
    pub stale_ppm: AtomicU64,
    pub time_cap_reached: AtomicU64,
    pub average_ttl_ms: AtomicU64,
    pub cpu_ns: AtomicU64,
}

impl Expiry {
    pub(crate) fn new() -> Expiry {
        Expiry {
            effort: 1.into(),
            gate: Mutex::default(),
            deleted: 0.into(),
            stale_ppm: 0.into(),
            time_cap_reached: 0.into(),
            average_ttl_ms: 0.into(),
            cpu_ns: 0.into(),
        }
    }

    pub(crate) fn set_effort(&self, effort: u32) -> Result<()> {
        if effort > EXPIRE_EFFORT_MAX {
            return Err(Error::Config(format!("the effort of expiry must be 0 to {EXPIRE_EFFORT_MAX}")));
        }
        self.effort.store(effort, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn effort(&self) -> u32 {
        self.effort.load(Ordering::Relaxed)
    }

    /// Keeps the thread from deleting anything until the guard is dropped.
    pub(crate) fn pause(&self) -> MutexGuard<'_, bool> {
        self.gate.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Closes or opens the gate, for times that no guard can cover.
    pub(crate) fn close_gate(&self, closed: bool) {
        *self.pause() = closed;
    }

    pub(crate) fn stats(&self) -> ExpiryStats {
        ExpiryStats {
            deleted: self.deleted.load(Ordering::Relaxed),
            stale_percent: self.stale_ppm.load(Ordering::Relaxed) as f64 / 10_000.0,
            time_cap_reached: self.time_cap_reached.load(Ordering::Relaxed),
            average_ttl_ms: self.average_ttl_ms.load(Ordering::Relaxed),
            cpu_time: Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)),
        }
    }

    /// Updates the estimate as Redis does: each period counts for a twentieth.
    pub(crate) fn note_period(&self, period: &Seen) {
        if let Some(now) = (period.expired * 1_000_000).checked_div(period.expiring) {
            let before = self.stale_ppm.load(Ordering::Relaxed);
            self.stale_ppm.store((before * 19 + now) / 20, Ordering::Relaxed);
        }
    }
}

/// The result of reading one piece.
#[derive(Debug)]
pub(crate) struct Look {
    now_ms: u64,
    pub seen: Seen,
    /// Keys that looked expired.
    pub expired: Vec<Vec<u8>>,
}

/// Keys with an expiry that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub expiring: u64,
    pub expired: u64,
    /// Sum of the times to live of those that are not expired.
    pub ttl_ms: u64,
    /// The earliest expiry of those.
    pub earliest_ms: Option<u64>,
}

impl Look {
    pub(crate) fn new(now_ms: u64) -> Look {
        Look { now_ms, seen: Seen::default(), expired: Vec::new() }
    }

    /// Notes a key with an expiry; `key` is called if it is expired.
    pub(crate) fn add(&mut self, expire_ms: u64, key: impl FnOnce() -> Option<Vec<u8>>) {
        self.seen.expiring += 1;
        if expire_ms > self.now_ms {
            self.seen.ttl_ms = self.seen.ttl_ms.saturating_add(expire_ms - self.now_ms);
            let earliest = self.seen.earliest_ms.map_or(expire_ms, |at| at.min(expire_ms));
            self.seen.earliest_ms = Some(earliest);
        } else if let Some(key) = key() {
            self.seen.expired += 1;
            self.expired.push(key);
        }
    }
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Seen) {
        self.expiring += other.expiring;
        self.expired += other.expired;
        self.ttl_ms = self.ttl_ms.saturating_add(other.ttl_ms);
        self.earliest_ms = [self.earliest_ms, other.earliest_ms].into_iter().flatten().min();
    }

    /// Whether the expired part is so large that the pass is worth more processor time.
    pub(crate) fn is_stale(&self, effort: u32) -> bool {
        let accepted = ACCEPTED_STALE_PERCENT.saturating_sub(u64::from(effort)).max(1);
        self.expired * 100 > self.expiring * accepted
    }
}

/// A position in a pass over the keys of a storage engine.
pub(crate) trait ExpiryCursor {
    /// Reads one piece into `look`. Returns whether the pass goes on. At the end of a pass the position returns to
    /// the first piece.
    fn read(&mut self, look: &mut Look) -> Result<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_part_of_expired_keys_raises_the_time() {
        let seen = |expired, expiring| Seen { expired, expiring, ..Seen::default() };
        assert!(!seen(0, 0).is_stale(1) && !seen(9, 100).is_stale(1));
        assert!(seen(10, 100).is_stale(1) && seen(2, 100).is_stale(EXPIRE_EFFORT_MAX));
        assert!(!seen(1, 100).is_stale(EXPIRE_EFFORT_MAX));
    }

    #[test]
    fn a_look_counts_and_keeps_what_is_expired() {
        let mut look = Look::new(1000);
        look.add(1000, || Some(b"now".to_vec()));
        look.add(1500, || panic!("this key is not asked for"));
        look.add(1100, || panic!("this key is not asked for"));
        look.add(1, || None);
        assert_eq!(look.expired, [b"now".to_vec()]);
        let expected = Seen { expiring: 4, expired: 1, ttl_ms: 600, earliest_ms: Some(1100) };
        assert_eq!(look.seen, expected);
    }

    #[test]
    fn an_effort_above_the_limit_is_refused() {
        let expiry = Expiry::new();
        expiry.set_effort(EXPIRE_EFFORT_MAX).unwrap();
        assert!(matches!(expiry.set_effort(EXPIRE_EFFORT_MAX + 1), Err(Error::Config(_))));
        assert_eq!(expiry.effort(), EXPIRE_EFFORT_MAX);
    }
}
