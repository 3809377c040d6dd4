//! Gives a store another configuration: a new database replaces the old one and is filled from the data directory.
//!
//! The data directory is complete before the old database goes, so a crash at any moment loses nothing that was durable. Only one of
//! the two databases is in memory at a time. If there can be no database with the new configuration, the store is opened again with
//! the old one.

use std::sync::Arc;

use super::datadir::DataDir;
use super::store::{Store, StoreConfig};
use crate::{Database, EngineKind, Error, Result};

/// The reason why a store was not rebuilt.
#[derive(Debug)]
pub struct RebuildError {
    /// The error.
    pub error: Error,
    /// The store with its old configuration and all of its data; `None` if it could not be opened again. Then the data directory has
    /// the data.
    pub store: Option<Store>,
}

impl Store {
    /// Replaces the database by one with another configuration and the same data. Libraries of procedures are loaded again.
    ///
    /// The caller has ended all sessions, and holds no other reference to the database if the old memory is to be free before the new
    /// database is filled. `created` is called with each new database before it is filled, as by
    /// [`Store::open_with`]. The time is that of a checkpoint and a recovery.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a configuration out of range, a store without a data directory, data that does not fit, or while
    /// handlers are attached; [`Error::WalFailed`] if the log cannot be written at the moment; or an error of the checkpoint or of the
    /// recovery. The store is then as before, unless [`RebuildError::store`] is `None`.
    pub fn rebuild(
        self,
        config: StoreConfig,
        created: &mut dyn FnMut(&Arc<Database>),
    ) -> std::result::Result<Store, RebuildError> {
        let data = match self.prepare_rebuild(&config) {
            Ok(data) => data,
            Err(error) => return Err(RebuildError { error, store: Some(self) }),
        };
        let old_config = self.config().clone();
        let libraries = self.database().libraries();
        if let Err(error) = self.close(false) {
            // The checkpoint has everything.
            tracing::warn!(%error, "closing the log");
        }
        drop(self);
        let mut open = |config| -> Result<Store> {
            let (store, _) = Store::open_in(config, data.clone(), &mut |_| (), created)?;
            let loaded = store.database().libraries();
            for (library, file) in libraries.iter().filter(|(name, file)| loaded.get(*name) != Some(file)) {
                store.database().load_library(library, file, true)?;
            }
            Ok(store)
        };
        open(config).map_err(|error| match open(old_config) {
            Ok(store) => RebuildError { error, store: Some(store) },
            Err(second) => {
                tracing::error!(error = %second, "the store cannot be opened with its old configuration again");
                RebuildError { error, store: None }
            }
        })
    }

    /// Checks the configuration and takes a checkpoint; returns the data directory, whose lock is held meanwhile.
    fn prepare_rebuild(&self, config: &StoreConfig) -> Result<DataDir> {
        config.checkpoint.check()?;
        config.database_config().check()?;
        let data = self.owned_data().ok_or_else(|| {
            Error::Config("the database is rebuilt from its data directory, and there is none".into())
        })?;
        let stats = self.database().stats();
        if stats.log_failed {
            return Err(Error::WalFailed);
        }
        // Without the index, whose size depends on the limit. Hash maps count none of it.
        let data_bytes = match self.config().database.engine {
            EngineKind::Arena => self.database().heap_stats().allocated_bytes,
            EngineKind::HashMap => stats.memory_used,
        };
        let limit = config.database.memory_bytes;
        if data_bytes > limit {
            let text =
                format!("the data takes {data_bytes} bytes, which do not fit into {limit} bytes of memory");
            return Err(Error::Config(text));
        }
        if self.database().handlers()?.iter().any(|handler| !handler.targets.is_empty()) {
            let text = "handlers are attached, which would miss events: detach them first, and attach them again after the change";
            return Err(Error::Config(text.into()));
        }
        self.checkpoint()?;
        Ok(data.clone())
    }
}
