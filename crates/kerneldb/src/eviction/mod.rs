//! Eviction: a thread that deletes keys when memory becomes short, so that the database serves as a cache.
//!
//! The operators keep the usage of each key in a byte of its entry (`bpf/engine/arena/usage.h`). The thread reads the mapped
//! memory. It lets the usage age, and it keeps a share of each partition's memory free. Writers find that share, so they seldom
//! wait. A writer that finds no memory nevertheless asks the thread and waits for its answer
//! ([`Eviction::request`](crate::engine::eviction::Eviction::request)).
//!
//! `usage` has the arithmetic of the usage, `aging` applies it to all keys in turn, `choice` decides which keys go first, `pending`
//! accounts for memory that comes back late, and `worker` is the thread.

mod aging;
mod choice;
mod pending;
mod usage;
mod worker;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    Error, Result, Session,
    engine::{Engine, EvictionOrder, EvictionPolicy},
};
use worker::Worker;

/// How a key is used, as far as the policy of eviction needs to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUsage {
    /// Time since the last access, within 5 % and the time that a pass over all keys takes. `None` unless the policy is by recency.
    pub idle: Option<Duration>,
    /// A logarithmic count of the accesses, 0 to 255. `None` unless the policy is by frequency.
    pub frequency: Option<u8>,
}

impl KeyUsage {
    /// The meaning of a usage under a policy.
    pub(crate) fn of(policy: EvictionPolicy, usage: u8) -> KeyUsage {
        match policy.order() {
            Some(EvictionOrder::LeastRecent) => {
                KeyUsage { idle: Some(usage::idle_time(usage)), frequency: None }
            }
            Some(EvictionOrder::LeastFrequent) => KeyUsage { idle: None, frequency: Some(usage) },
            _ => KeyUsage::default(),
        }
    }
}

/// The running thread; dropping it ends it.
pub(crate) struct Evictor {
    db: Arc<Engine>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Evictor {
    /// Starts the thread of a database. The thread uses a session that is not for users.
    pub(crate) fn start(db: Arc<Engine>) -> Result<Evictor> {
        let session = Session::with_index(db.clone(), db.config().max_sessions + 1);
        let stop = Arc::new(AtomicBool::new(false));
        let seed = crate::random::secret_word()?;
        let body = {
            let (db, stop) = (db.clone(), stop.clone());
            move || Worker::new(&db, session, seed).run(&stop)
        };
        let thread = bedplate_threads::spawn(std::thread::Builder::new().name("kdb-evict".into()), body)
            .map_err(|e| Error::io("cannot start the thread that evicts keys", e))?;
        Ok(Evictor { db, stop, thread: Some(thread) })
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.db.eviction.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
