//! The data behind a server: a database, with or without a store that makes it durable. The event loop takes it away for a rebuild of the
//! database, and puts the new one here.
//!
//! There is one lock, held for a few instructions. A thread that needs the data holds a reference for one piece of work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bedplate_kerneldb::{Database, Result, Store};

/// A database and its store.
pub(super) struct Data {
    pub(super) database: Arc<Database>,
    pub(super) store: Option<Arc<Store>>,
    /// Number of scan positions.
    pub(super) positions: u64,
}

impl Data {
    pub(super) fn new(database: Arc<Database>, store: Option<Arc<Store>>) -> Result<Data> {
        let positions = database.snapshot()?.positions();
        Ok(Data { database, store, positions })
    }

    pub(super) fn of_store(store: Arc<Store>) -> Result<Data> {
        Data::new(store.database().clone(), Some(store))
    }
}

/// The data that is served at the moment.
pub(super) struct CurrentData(Mutex<Option<Arc<Data>>>);

impl CurrentData {
    pub(super) fn new(data: Data) -> CurrentData {
        CurrentData(Mutex::new(Some(Arc::new(data))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Data>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reference to the data. Panics while the event loop rebuilds the database: only its own thread, and administrative tasks, which
    /// it waits for, use the data.
    pub(super) fn get(&self) -> Arc<Data> {
        self.lock().clone().expect("the event loop waits for those who use the data")
    }

    /// The store; `None` without one, and while the database is rebuilt.
    pub(super) fn store(&self) -> Option<Arc<Store>> {
        self.lock().as_ref().and_then(|data| data.store.clone())
    }

    /// Takes the data away.
    pub(super) fn take(&self) -> Option<Arc<Data>> {
        self.lock().take()
    }

    /// Serves this data from now on.
    pub(super) fn put(&self, data: Arc<Data>) {
        *self.lock() = Some(data);
    }
}
