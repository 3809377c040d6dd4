//! Active expiry: a thread that deletes keys whose expiry has passed, without anybody touching them.
//!
//! An expired key does not exist for any reader from that millisecond on; the operators see to that.
//! Deleting it gives its memory back. The thread reads the entries piece by piece (a slab of an arena, or a
//! batch of the hash-map engine's index) and runs one auto-commit DELETE for each key that looks expired. The
//! operator decides under the entry's lock, so a key that was written again stays.
//!
//! The thread works in periods of 100 ms. Its effort bounds the processor time of a period: a few percent of
//! one processor, and more while a large part of the keys that it reads is expired. It reads nothing while
//! no key has an expiry.
//!
//! Lock: `Expiry::gate`, before `housekeeping`. The thread holds it while it reads a piece and deletes its
//! expired keys. Recovery and verification, which must be alone, hold it or close the gate.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    Config, Error, Result, Session, Written, arena::look_at_slab, database::Inner, hashmap::IndexCursor,
    limits::EXPIRE_EFFORT_MAX,
};

/// The processor time is bounded in each period of this length.
const PERIOD: Duration = Duration::from_millis(100);
/// The longest rest after a pass that found nothing to delete.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The rest after an error that does not pass by itself, such as a log that cannot be written.
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);
/// Processor time of a period for each step of the effort.
const BASE_TIME: Duration = Duration::from_micros(2500);
/// Processor time of a period while many keys are expired: a first part, and more for each further step.
const RAISED_TIME: Duration = Duration::from_millis(25);
const RAISED_STEP: Duration = Duration::from_millis(2);
/// Expired keys in percent of the keys read, up to which the time is not raised at the lowest effort.
const ACCEPTED_STALE_PERCENT: u64 = 10;

/// Sessions that a database has: those of its users, and one for the active expiry.
pub(crate) fn sessions(config: &Config) -> u32 {
    config.max_sessions + 1
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
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

/// What the thread and its database share.
pub(crate) struct Expiry {
    effort: AtomicU32,
    /// Whether the gate is closed: nothing is deleted until it is opened.
    gate: Mutex<bool>,
    deleted: AtomicU64,
    stale_ppm: AtomicU64,
    time_cap_reached: AtomicU64,
    average_ttl_ms: AtomicU64,
    cpu_ns: AtomicU64,
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

    /// Redis's estimate: each period counts for a twentieth.
    fn note_period(&self, period: &Seen) {
        if let Some(now) = (period.expired * 1_000_000).checked_div(period.expiring) {
            let before = self.stale_ppm.load(Ordering::Relaxed);
            self.stale_ppm.store((before * 19 + now) / 20, Ordering::Relaxed);
        }
    }
}

/// What was read of one piece.
#[derive(Debug)]
pub(crate) struct Look {
    now_ms: u64,
    seen: Seen,
    /// Keys that looked expired.
    expired: Vec<Vec<u8>>,
}

/// Keys with an expiry that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    expiring: u64,
    expired: u64,
    /// Sum of the times to live of those that are not expired.
    ttl_ms: u64,
    /// The earliest expiry of those.
    earliest_ms: Option<u64>,
}

impl Look {
    fn new(now_ms: u64) -> Look {
        Look { now_ms, seen: Seen::default(), expired: Vec::new() }
    }

    /// Takes note of a key with an expiry; `key` is asked for if it is expired.
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
    fn add(&mut self, other: &Seen) {
        self.expiring += other.expiring;
        self.expired += other.expired;
        self.ttl_ms = self.ttl_ms.saturating_add(other.ttl_ms);
        self.earliest_ms = [self.earliest_ms, other.earliest_ms].into_iter().flatten().min();
    }

    /// Whether so large a part is expired that the pass is worth more processor time.
    fn is_stale(&self, effort: u32) -> bool {
        let accepted = ACCEPTED_STALE_PERCENT.saturating_sub(u64::from(effort)).max(1);
        self.expired * 100 > self.expiring * accepted
    }
}

/// Where the thread is in its pass over all keys.
enum Position {
    Arena { partition: usize, slab: u64 },
    HashMaps(IndexCursor),
}

impl Position {
    fn first(db: &Inner) -> Position {
        match &db.hash {
            Some(hash) => Position::HashMaps(hash.index_cursor()),
            None => Position::Arena { partition: 0, slab: 0 },
        }
    }

    /// Reads one piece. Returns whether the pass goes on; after its end the position is the first one.
    fn read(&mut self, db: &Inner, look: &mut Look) -> Result<bool> {
        match self {
            Position::HashMaps(cursor) => match &db.hash {
                Some(hash) => hash.look_at_batch(cursor, look),
                None => Ok(false),
            },
            Position::Arena { partition, slab } => {
                match look_at_slab(&db.partitions[*partition], *slab, look) {
                    Some(next) => *slab = next,
                    None => (*partition, *slab) = (*partition + 1, 0),
                }
                if *partition < db.partitions.len() {
                    return Ok(true);
                }
                *partition = 0;
                Ok(false)
            }
        }
    }
}

/// Why the expired keys of a piece were not all looked after.
enum Obstacle {
    /// The log or a latch is busy.
    Busy,
    Failed(Error),
}

/// The state of the thread.
struct Worker {
    db: Arc<Inner>,
    session: Session,
    position: Position,
    /// What was read in the pass so far.
    pass: Seen,
}

impl Worker {
    /// Works for one period; returns how long to rest.
    fn period(&mut self) -> Duration {
        let (started, cpu_start) = (Instant::now(), thread_time());
        let mut period = Seen::default();
        let expiry = &self.db.clone().expiry;
        let rest = loop {
            let effort = expiry.effort();
            if effort == 0 || self.db.expiring_keys() == 0 {
                if effort != 0 {
                    expiry.average_ttl_ms.store(0, Ordering::Relaxed);
                    expiry.stale_ppm.store(0, Ordering::Relaxed);
                }
                break PERIOD;
            }
            match self.piece(&mut period) {
                Ok(None) => {}
                Ok(Some(rest)) => break rest,
                Err(Obstacle::Busy) => break PERIOD,
                Err(Obstacle::Failed(error)) => {
                    tracing::debug!(%error, "expired keys stay for now");
                    break REST_AFTER_ERROR;
                }
            }
            let stale = period.is_stale(effort);
            if thread_time() - cpu_start >= time_of_period(effort, stale) {
                expiry.time_cap_reached.fetch_add(stale.into(), Ordering::Relaxed);
                break PERIOD.saturating_sub(started.elapsed()).max(PERIOD / 10);
            }
        };
        expiry.note_period(&period);
        expiry.cpu_ns.fetch_add((thread_time() - cpu_start).as_nanos() as u64, Ordering::Relaxed);
        rest
    }

    /// Reads a piece and deletes its expired keys. At the end of a pass, returns how long to rest.
    fn piece(&mut self, period: &mut Seen) -> std::result::Result<Option<Duration>, Obstacle> {
        let db = self.db.clone();
        let closed = db.expiry.pause();
        if *closed {
            return Ok(Some(PERIOD));
        }
        let now_ms = unix_ms();
        let mut look = Look::new(now_ms);
        let more = self.position.read(&db, &mut look).map_err(Obstacle::Failed)?;
        period.add(&look.seen);
        self.pass.add(&look.seen);
        for key in &look.expired {
            match self.session.delete_expired(key) {
                Ok(Written::Done { .. }) => {
                    db.expiry.deleted.fetch_add(1, Ordering::Relaxed);
                }
                // It was written again, somebody else has deleted it, or it is in use.
                Ok(Written::ConditionFailed) | Err(Error::Conflict | Error::NoVersion) => {}
                Err(error) if error.is_transient() => return Err(Obstacle::Busy),
                Err(error) => return Err(Obstacle::Failed(error)),
            }
        }
        drop(closed);
        if more {
            return Ok(None);
        }
        let pass = std::mem::take(&mut self.pass);
        let average = pass.ttl_ms.checked_div(pass.expiring - pass.expired).unwrap_or(0);
        db.expiry.average_ttl_ms.store(average, Ordering::Relaxed);
        // A key that was in use is looked at again soon; else nothing is due before the earliest expiry.
        let due = pass.earliest_ms.filter(|_| pass.expired == 0).map(|at| at.saturating_sub(now_ms));
        Ok(Some(due.map_or(PERIOD, Duration::from_millis).clamp(PERIOD, LONGEST_REST)))
    }
}

/// The processor time that one period may take.
fn time_of_period(effort: u32, stale: bool) -> Duration {
    if stale { RAISED_TIME + RAISED_STEP * effort.saturating_sub(1) } else { BASE_TIME * effort }
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The running thread; dropping it ends it.
pub(crate) struct Expirer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Expirer {
    /// Starts the thread of a database. It gets the session that is not for users.
    pub(crate) fn start(db: Arc<Inner>) -> Result<Expirer> {
        let session = Session::with_index(db.clone(), db.config.max_sessions);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("kdb-expire".into())
            .spawn({
                let stop = stop.clone();
                move || {
                    let position = Position::first(&db);
                    let mut worker = Worker { db, session, position, pass: Seen::default() };
                    while !stop.load(Ordering::Relaxed) {
                        let rest = worker.period();
                        if !stop.load(Ordering::Relaxed) {
                            std::thread::park_timeout(rest);
                        }
                    }
                }
            })
            .map_err(|e| Error::io("cannot start the thread that deletes expired keys", e))?;
        Ok(Expirer { stop, thread: Some(thread) })
    }
}

impl Drop for Expirer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_period_follows_the_effort() {
        assert_eq!(time_of_period(1, false), PERIOD / 40, "2.5 % of a processor by default");
        assert_eq!(time_of_period(EXPIRE_EFFORT_MAX, false), PERIOD / 4);
        assert_eq!(time_of_period(1, true), PERIOD / 4);
        assert_eq!(time_of_period(EXPIRE_EFFORT_MAX, true), PERIOD * 43 / 100);
    }

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
