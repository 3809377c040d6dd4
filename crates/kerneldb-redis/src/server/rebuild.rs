//! The request for another database, and the configuration that it asks for.
//!
//! A client's CONFIG SET leaves the request here. The event loop fulfils it between the requests of its clients
//! (`event_loop/rebuild.rs`). There is one request at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::command::{AdminTaskResult, AdminTaskTicket, DatabaseOptions};
use crate::limits::REBUILD_WAIT;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Durability, StoreConfig};

/// A request for a database with other options.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) options: DatabaseOptions,
    /// The time until which it waits for transactions to end.
    pub(super) until: Instant,
    ticket: Arc<AdminTaskTicket>,
}

/// The request, if there is one, and the number of databases so far.
#[derive(Default)]
pub(super) struct Rebuilds {
    request: Mutex<Option<Request>>,
    count: AtomicU64,
    /// The configuration of a log that is switched on: that of the last log, or the one of the server's configuration.
    wal: Mutex<Option<WalConfig>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rebuilds {
    /// `wal` is the configuration of a log that is switched on.
    pub(super) fn new(wal: Option<WalConfig>) -> Rebuilds {
        Rebuilds { wal: Mutex::new(wal), ..Rebuilds::default() }
    }

    /// Makes a request. The error is the client's reply.
    pub(super) fn submit(&self, options: DatabaseOptions) -> Result<Arc<AdminTaskTicket>, String> {
        let mut request = lock(&self.request);
        if request.is_some() {
            return Err("ERR the database is being rebuilt already".into());
        }
        let ticket = Arc::new(AdminTaskTicket::default());
        *request = Some(Request { options, until: Instant::now() + REBUILD_WAIT, ticket: ticket.clone() });
        Ok(ticket)
    }

    /// The present request.
    pub(super) fn request(&self) -> Option<Request> {
        lock(&self.request).clone()
    }

    /// Ends the present request.
    pub(super) fn finish(&self, result: AdminTaskResult) {
        if let Some(request) = lock(&self.request).take() {
            request.ticket.finish(result);
        }
    }

    /// Another database holds the data from now on, with the options of the request or with the old ones.
    pub(super) fn count_database(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
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
        let wal = match options.durability {
            Durability::Off => None,
            durability => Some(WalConfig { durability, ..kept.clone().unwrap_or_default() }),
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
