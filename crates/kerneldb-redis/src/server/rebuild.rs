//! The request for another database or for another program, and the configuration that it asks for.
//!
//! A client's CONFIG SET or BEDPLATE UPGRADE leaves the request here. The event loop fulfils it between the requests of its clients
//! (`event_loop/rebuild.rs`, `event_loop/handover.rs`). There is one request at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::UpgradeCheck;
use crate::command::{AdminTaskResult, AdminTaskTicket, DatabaseOptions};
use crate::limits::REBUILD_WAIT;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Durability, StoreConfig};

/// The work that a request asks for.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// The database gets these options.
    Rebuild(DatabaseOptions),
    /// The server hands its parts to another program.
    HandOver,
}

/// A request.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) work: Work,
    /// The time until which it waits for transactions to end.
    pub(super) until: Instant,
    pub(super) ticket: Arc<AdminTaskTicket>,
}

/// The state of the one request.
#[derive(Default)]
enum State {
    /// There is none.
    #[default]
    Free,
    /// A new program is being checked, which precedes a request.
    Checking,
    /// The event loop has to fulfil it.
    Requested(Request),
}

impl State {
    /// Whether a further request can be made. The error is the client's reply.
    fn is_free(&self) -> Result<(), String> {
        match self {
            State::Free => Ok(()),
            State::Requested(Request { work: Work::Rebuild(_), .. }) => {
                Err("ERR the database is being rebuilt already".into())
            }
            _ => Err("ERR the server is being upgraded".into()),
        }
    }
}

/// The request, if there is one, and the number of databases so far.
#[derive(Default)]
pub(super) struct Rebuilds {
    state: Arc<Mutex<State>>,
    count: AtomicU64,
    /// The configuration of a log that is switched on: that of the last log, or the one of the server's configuration.
    wal: Mutex<Option<WalConfig>>,
}

impl Request {
    fn new(work: Work, ticket: Arc<AdminTaskTicket>) -> Request {
        Request { work, until: Instant::now() + REBUILD_WAIT, ticket }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rebuilds {
    /// `wal` is the configuration of a log that is switched on.
    pub(super) fn new(wal: Option<WalConfig>) -> Rebuilds {
        Rebuilds { wal: Mutex::new(wal), ..Rebuilds::default() }
    }

    /// Makes a request for other options. The error is the client's reply.
    pub(super) fn submit(&self, options: DatabaseOptions) -> Result<Arc<AdminTaskTicket>, String> {
        let mut state = lock(&self.state);
        state.is_free()?;
        let ticket = Arc::new(AdminTaskTicket::default());
        *state = State::Requested(Request::new(Work::Rebuild(options), ticket.clone()));
        Ok(ticket)
    }

    /// Makes a request for another program, if the check says that it can go on. The error is the client's reply.
    pub(super) fn submit_upgrade(&self, check: &UpgradeCheck) -> Result<Arc<AdminTaskTicket>, String> {
        let mut state = lock(&self.state);
        state.is_free()?;
        let ticket = Arc::new(AdminTaskTicket::default());
        let (target, check, tell) = (self.state.clone(), check.clone(), ticket.clone());
        let thread = thread::Builder::new().name("kdb-upgrade".into()).spawn(move || {
            let checked = catch_unwind(AssertUnwindSafe(|| check.run()));
            let mut state = lock(&target);
            *state = State::Free;
            match checked.unwrap_or_else(|_| Err("the check of the new program failed".into())) {
                Ok(()) => *state = State::Requested(Request::new(Work::HandOver, tell)),
                Err(error) => {
                    tracing::warn!(error, "no upgrade");
                    tell.finish(Err(format!("ERR {error}")));
                }
            }
        });
        thread.map_err(|error| format!("ERR the new program cannot be checked: {error}"))?;
        // The thread waits for the lock before it changes the state.
        *state = State::Checking;
        Ok(ticket)
    }

    /// Whether a request is made or will be.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(*lock(&self.state), State::Free)
    }

    /// The present request.
    pub(super) fn request(&self) -> Option<Request> {
        match &*lock(&self.state) {
            State::Requested(request) => Some(request.clone()),
            _ => None,
        }
    }

    /// Ends the present request.
    pub(super) fn finish(&self, result: AdminTaskResult) {
        let mut state = lock(&self.state);
        if let State::Requested(request) = &*state {
            request.ticket.finish(result);
            *state = State::Free;
        }
    }

    /// Another database holds the data from now on, with the options of the request or with the old ones.
    pub(super) fn count_database(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// As many databases have held the data before.
    pub(super) fn count_from(&self, databases: u64) {
        self.count.fetch_max(databases, Ordering::Relaxed);
    }

    /// Number of databases before the present one.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The configuration for some options, which differs from the present one in nothing else. A database has as many partitions
    /// as its memory takes, unless it was configured to have more.
    pub(super) fn config(&self, present: &StoreConfig, options: &DatabaseOptions) -> StoreConfig {
        let mut kept = lock(&self.wal);
        if let Some(wal) = &present.wal {
            *kept = Some(wal.clone());
        }
        config_with(present, kept.as_ref(), options)
    }
}

/// The configuration for some options. `log` is the configuration of a log that `present` does not have.
pub(super) fn config_with(
    present: &StoreConfig,
    log: Option<&WalConfig>,
    options: &DatabaseOptions,
) -> StoreConfig {
    let log = present.wal.as_ref().or(log);
    let wal = match options.durability {
        Durability::Off => None,
        durability => Some(WalConfig { durability, ..log.cloned().unwrap_or_default() }),
    };
    let old = &present.database;
    let least = old.engine.partitions_for(options.memory_bytes);
    let by_memory = old.partitions == old.engine.partitions_for(old.memory_bytes);
    let database = Config {
        memory_bytes: options.memory_bytes,
        partitions: if by_memory { least } else { least.max(old.partitions) },
        versions: options.versions,
        wal_ring_bytes: options.wal_ring_bytes,
        ..old.clone()
    };
    StoreConfig { database, wal, ..present.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_at_a_time() {
        let rebuilds = Rebuilds::default();
        let first = rebuilds.submit(DatabaseOptions::default()).unwrap();
        assert!(rebuilds.submit(DatabaseOptions::default()).unwrap_err().contains("already"));
        rebuilds.finish(Err("ERR no".into()));
        assert_eq!(first.result(), Some(&Err("ERR no".into())));
        let second = rebuilds.submit(DatabaseOptions::default()).unwrap();
        rebuilds.finish(Ok(String::new()));
        assert_eq!(second.result(), Some(&Ok(String::new())));
        assert!(rebuilds.request().is_none());
    }

    #[test]
    fn an_upgrade_is_checked_before_it_is_requested() {
        let rebuilds = Rebuilds::default();
        let (go, wait) = std::sync::mpsc::channel();
        let wait = Mutex::new(wait);
        let check = UpgradeCheck::new(move || lock(&wait).recv().unwrap());
        let ended = |ticket: &AdminTaskTicket| loop {
            match ticket.result() {
                Some(result) => return result.clone(),
                None => thread::yield_now(),
            }
        };
        let first = rebuilds.submit_upgrade(&check).unwrap();
        assert!(rebuilds.is_busy() && rebuilds.request().is_none());
        assert!(rebuilds.submit_upgrade(&check).unwrap_err().contains("being upgraded"));
        assert!(rebuilds.submit(DatabaseOptions::default()).unwrap_err().contains("being upgraded"));
        go.send(Err("there is no program".into())).unwrap();
        assert_eq!(ended(&first), Err("ERR there is no program".into()));
        assert!(!rebuilds.is_busy());
        let second = rebuilds.submit_upgrade(&check).unwrap();
        go.send(Ok(())).unwrap();
        while rebuilds.request().is_none() {
            thread::yield_now();
        }
        assert!(matches!(rebuilds.request().unwrap().work, Work::HandOver));
        assert!(rebuilds.submit(DatabaseOptions::default()).is_err());
        rebuilds.finish(Ok(String::new()));
        assert_eq!(ended(&second), Ok(String::new()));
    }

    #[test]
    fn a_configuration_differs_in_the_options_alone() {
        let rebuilds = Rebuilds::default();
        let wal = WalConfig { segment_bytes: 12 << 20, ..WalConfig::default() };
        let present = StoreConfig { wal: Some(wal), ..StoreConfig::default() };
        let options = |durability, memory_bytes| DatabaseOptions {
            durability,
            memory_bytes,
            versions: 7,
            wal_ring_bytes: 1 << 20,
        };
        let without = rebuilds.config(&present, &options(Durability::Off, 9 << 30));
        assert!(without.wal.is_none());
        let database = &without.database;
        assert_eq!((database.partitions, database.memory_bytes, database.versions), (3, 9 << 30, 7));
        // A log that is switched on again is as it was, and partitions go with the memory.
        let with = rebuilds.config(&without, &options(Durability::Sync, 1 << 30));
        let wal = with.wal.unwrap();
        assert_eq!((wal.durability, wal.segment_bytes), (Durability::Sync, 12 << 20));
        assert_eq!((with.database.partitions, with.database.wal_ring_bytes), (1, 1 << 20));
        // Partitions that were asked for stay.
        let two =
            StoreConfig { database: Config { partitions: 2, ..Config::default() }, ..StoreConfig::default() };
        assert_eq!(rebuilds.config(&two, &options(Durability::Off, 1 << 30)).database.partitions, 2);
        assert_eq!(rebuilds.config(&two, &options(Durability::Off, 9 << 30)).database.partitions, 3);
    }
}
