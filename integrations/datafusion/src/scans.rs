//! What all scans of a session share: the service, the local stores, the buffers.
//!
//! Lock: the numbers of readers by file. Nothing else is taken while it is held.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bedplate_scan::Service;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::error::Result;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionContext;

use crate::buffers::Buffers;
use crate::factory::ScanReaderFactory;
use crate::limits::{MANY_READERS_OF_A_FILE, MIN_FILE_BYTES, READ_AHEAD_BYTES};
use crate::local::Root;
use crate::rule::ScanRule;
use crate::statistics::{Counters, Statistics};

/// The options of a user.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Files with fewer bytes are left to the default reader: [`MIN_FILE_BYTES`], 16 MiB.
    pub min_file_bytes: u64,
    /// Bytes that each stream fetches ahead of its decoder: [`READ_AHEAD_BYTES`], 32 MiB.
    pub read_ahead_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { min_file_bytes: MIN_FILE_BYTES, read_ahead_bytes: READ_AHEAD_BYTES }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub service: Service,
    pub options: Options,
    pub roots: Vec<Root>,
    pub buffers: Buffers,
    pub counters: Counters,
    /// Readers of this process by file.
    readers: Mutex<HashMap<PathBuf, usize>>,
}

/// Readers of a file that a stream may have. They are counted until this is dropped.
pub(crate) struct Lease {
    shared: Arc<Shared>,
    path: PathBuf,
    readers: usize,
}

impl Lease {
    /// A lease of `wanted` readers, or of one if the file has many.
    pub fn new(shared: Arc<Shared>, path: PathBuf, wanted: usize) -> Self {
        let mut readers = shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = readers.entry(path.clone()).or_default();
        let granted = if *count + wanted > MANY_READERS_OF_A_FILE { 1 } else { wanted };
        *count += granted;
        drop(readers);
        Self { shared, path, readers: granted }
    }

    /// How many.
    pub fn readers(&self) -> usize {
        self.readers
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut readers = self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = readers.get_mut(&self.path) {
            *count -= self.readers;
            if *count == 0 {
                readers.remove(&self.path);
            }
        }
    }
}

/// Scans by a [`Service`]. Cheap to clone; clones share the service and the statistics.
#[derive(Clone, Debug)]
pub struct Scans {
    pub(crate) shared: Arc<Shared>,
}

impl Scans {
    /// By a service, which is in this process ([`Service::start`]) or a daemon ([`Service::connect`]). Files of `file://` are scanned
    /// by it.
    pub fn new(service: Service) -> Self {
        Self::with_options(service, Options::default(), []).expect("there is no folder that could be missing")
    }

    /// As [`new`](Self::new), with options, and with object stores that are folders of this machine: the URL of each, as
    /// `scheme://name`, and the folder.
    ///
    /// # Errors
    /// A folder is not there.
    pub fn with_options<'a>(
        service: Service,
        options: Options,
        folders: impl IntoIterator<Item = (&'a str, &'a Path)>,
    ) -> Result<Self> {
        let mut roots = vec![Root::file_system()];
        for (url, folder) in folders {
            roots.push(Root::folder(url, folder)?);
        }
        let (buffers, counters, readers) = Default::default();
        Ok(Self { shared: Arc::new(Shared { service, options, roots, buffers, counters, readers }) })
    }

    /// Installs the [rule](ScanRule) in a session, for queries that are planned from now on.
    pub fn install(&self, context: &SessionContext) {
        let state = context.state_ref();
        let mut state = state.write();
        *state = self.installed(state.clone());
    }

    /// A session state with the [rule](ScanRule).
    pub fn installed(&self, state: SessionState) -> SessionState {
        let runtime = state.runtime_env().clone();
        let rule = ScanRule::new(self.clone()).with_runtime(runtime);
        SessionStateBuilder::new_from_existing(state).with_physical_optimizer_rule(Arc::new(rule)).build()
    }

    /// The factory that reads the files of a store by the service, and what the service does not read by another factory. `None`: the
    /// store is none of this machine's folders.
    pub fn factory(
        &self,
        store: &ObjectStoreUrl,
        default: Arc<dyn ParquetFileReaderFactory>,
    ) -> Option<ScanReaderFactory> {
        let root = self.shared.roots.iter().position(|root| root.is_of(store.as_str()))?;
        Some(ScanReaderFactory::new(self.clone(), root, default))
    }

    /// The statistics of the scans.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.read()
    }

    /// The service.
    pub fn service(&self) -> &Service {
        &self.shared.service
    }
}
