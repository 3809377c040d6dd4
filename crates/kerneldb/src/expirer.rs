//! Active expiry: a thread that deletes keys whose expiry has passed, even if no client accesses them.
//!
//! From the millisecond of its expiry, a key does not exist for any reader; the operators ensure that.
//! Deleting the key gives its memory back. The thread reads the entries piece by piece (a slab of an arena,
//! or a batch of the hash-map engine's index) and runs one auto-commit DELETE for each key that looks
//! expired. The operator decides under the entry's lock, so a key that was written again stays.
//!
//! The thread works in periods of 100 ms. Its effort bounds the processor time of a period: a few percent of
//! one processor, and more while a large part of the keys that it reads is expired. It reads nothing while
//! no key has an expiry.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    Error, Result, Session, Written,
    engine::{Engine, ExpiryCursor, Look, Seen, thread_time, unix_ms},
};

/// The processor time is bounded in each period of this length.
const PERIOD: Duration = Duration::from_millis(100);
/// The longest rest after a pass that found nothing to delete.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The rest after a lasting error, such as a log that cannot be written.
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);
/// Processor time of a period for each step of the effort.
const BASE_TIME: Duration = Duration::from_micros(2500);
/// Processor time of a period while many keys are expired: a first part, and more for each further step.
const RAISED_TIME: Duration = Duration::from_millis(25);
const RAISED_STEP: Duration = Duration::from_millis(2);

/// The reason why some expired keys of a piece were not deleted.
enum Obstacle {
    /// The log or a latch is busy, or there is no memory for a deletion that a snapshot makes keep the key's last value.
    Busy,
    Failed(Error),
}

/// The state of the thread.
struct Worker<'db> {
    db: &'db Engine,
    session: Session,
    cursor: Box<dyn ExpiryCursor + 'db>,
    /// Totals of the keys read in this pass so far.
    pass: Seen,
}

impl Worker<'_> {
    /// Works for one period; returns how long to rest.
    fn period(&mut self) -> Duration {
        let (started, cpu_start) = (Instant::now(), thread_time());
        let mut period = Seen::default();
        let expiry = &self.db.expiry;
        let rest = loop {
            let effort = expiry.effort();
            if effort == 0 || self.db.control.expiring_keys() == 0 {
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
        let db = self.db;
        let closed = db.expiry.pause();
        if *closed {
            return Ok(Some(PERIOD));
        }
        let now_ms = unix_ms();
        let mut look = Look::new(now_ms);
        let more = self.cursor.read(&mut look).map_err(Obstacle::Failed)?;
        period.add(&look.seen);
        self.pass.add(&look.seen);
        for key in &look.expired {
            match self.session.try_delete_expired(key) {
                Ok(Written::Done { .. }) => {
                    db.expiry.deleted.fetch_add(1, Ordering::Relaxed);
                }
                // The key was written again or is in use, or another session has deleted it.
                Ok(Written::ConditionFailed) | Err(Error::Conflict | Error::NoVersion) => {}
                Err(error) if error.is_transient() || matches!(error, Error::NoMemory) => {
                    return Err(Obstacle::Busy);
                }
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
        // A key that was in use is checked again soon; else no key is due before the earliest expiry.
        let due = pass.earliest_ms.filter(|_| pass.expired == 0).map(|at| at.saturating_sub(now_ms));
        Ok(Some(due.map_or(PERIOD, Duration::from_millis).clamp(PERIOD, LONGEST_REST)))
    }
}

/// The processor time that one period may take.
fn time_of_period(effort: u32, stale: bool) -> Duration {
    if stale { RAISED_TIME + RAISED_STEP * effort.saturating_sub(1) } else { BASE_TIME * effort }
}

/// The running thread; dropping it ends it.
pub(crate) struct Expirer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Expirer {
    /// Starts the thread of a database. The thread uses the session that is not for users.
    pub(crate) fn start(db: Arc<Engine>) -> Result<Expirer> {
        let session = Session::with_index(db.clone(), db.config().max_sessions);
        let stop = Arc::new(AtomicBool::new(false));
        let body = {
            let stop = stop.clone();
            move || {
                let cursor = db.expiry_cursor();
                let mut worker = Worker { db: &db, session, cursor, pass: Seen::default() };
                while !stop.load(Ordering::Relaxed) {
                    let rest = worker.period();
                    if !stop.load(Ordering::Relaxed) {
                        std::thread::park_timeout(rest);
                    }
                }
            }
        };
        let thread = bedplate_threads::spawn(std::thread::Builder::new().name("kdb-expire".into()), body)
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
    use crate::limits::EXPIRE_EFFORT_MAX;

    #[test]
    fn the_time_of_a_period_follows_the_effort() {
        assert_eq!(time_of_period(1, false), PERIOD / 40, "2.5 % of a processor by default");
        assert_eq!(time_of_period(EXPIRE_EFFORT_MAX, false), PERIOD / 4);
        assert_eq!(time_of_period(1, true), PERIOD / 4);
        assert_eq!(time_of_period(EXPIRE_EFFORT_MAX, true), PERIOD * 43 / 100);
    }
}
