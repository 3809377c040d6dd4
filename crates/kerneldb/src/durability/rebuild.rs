//! Gives a store another configuration: a new database replaces the old one and is filled from the data directory, or from an image in
//! memory if the store has no directory.
//!
//! The data directory is complete before the old database goes, so a crash at any moment loses nothing that was durable. Only one of
//! the two databases is in memory at a time. If there can be no database with the new configuration, the store is opened again with
//! the old one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::datadir::DataDir;
use super::image::{self, Image};
use super::recovery::{RecoveryOptions, RecoveryReport};
use super::store::{Store, StoreConfig};
use crate::{Database, EngineKind, Error, Result};

/// The reason why a store was not rebuilt.
#[derive(Debug)]
pub struct RebuildError {
    /// The error.
    pub error: Error,
    /// The store with its old configuration and all of its data; `None` if it could not be opened again. Then the data directory has
    /// the data, if there is one.
    pub store: Option<Box<Store>>,
}

impl Store {
    /// Checks a configuration as far as that is possible before [`Store::rebuild`], and takes a checkpoint unless the last one has
    /// everything, or there is no data directory. Others may use the database meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a configuration out of range, a log without a data directory, data that does not fit, a copy of it that
    /// does not fit into the machine if there is no data directory; [`Error::WalFailed`] if the log cannot be written at the moment; or the checkpoint's error.
    pub fn prepare_rebuild(&self, config: &StoreConfig) -> Result<()> {
        config.check()?;
        if self.owned_data().is_none() && config.wal.is_some() {
            return Err(Error::Config("a log needs a data directory, and there is none".into()));
        }
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
        if self.owned_data().is_none() {
            return image::check_memory(data_bytes);
        }
        let saved = self.checkpoint_status().last.map_or(0, |info| info.ts);
        if saved < self.database().clock() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Replaces the database by one with another configuration and the same data. Libraries of procedures are loaded again.
    /// Handlers stay attached: stand-ins fail their events meanwhile.
    ///
    /// The caller has ended all sessions, and holds no other reference to the database: the old memory is to be free before the new
    /// database is filled. `created` is called with each new database before it is filled, as by
    /// [`Store::open_with`]. The new store's recovery is not forced ([`RecoveryOptions::force`]). The time is that of
    /// [`Store::prepare_rebuild`] and of a recovery.
    ///
    /// # Errors
    ///
    /// Those of [`Store::prepare_rebuild`]; [`Error::Config`] if sessions are open; or an error of the recovery.
    /// [`RebuildError::store`] has the store then: the same one, or one that was opened again with the old configuration.
    pub fn rebuild(
        self,
        config: StoreConfig,
        created: &mut dyn FnMut(&Arc<Database>),
    ) -> std::result::Result<Store, RebuildError> {
        let stays = |error, store| RebuildError { error, store: Some(Box::new(store)) };
        // Handlers must not commit anything after the checkpoint.
        let handlers = match self.database().suspend_handlers() {
            Ok(handlers) => handlers,
            Err(error) => return Err(stays(error, self)),
        };
        let prepared = match self.database().engine().open_sessions() {
            0 => self.prepare_rebuild(&config).and_then(|()| self.source()),
            open => Err(Error::Config(format!("{open} sessions of the database are open"))),
        };
        let (source, ts) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.database().resume_handlers(handlers);
                return Err(stays(error, self));
            }
        };
        let old_config = self.config().clone();
        let libraries = self.database().libraries();
        if let Err(error) = self.close(false) {
            // The checkpoint has everything.
            tracing::warn!(%error, "closing the log");
        }
        drop(self);
        let mut open = |config: StoreConfig| -> Result<Store> {
            // The database had all of the data, so a recovery must not give a part up.
            let config = StoreConfig { recovery: RecoveryOptions { force: false }, ..config };
            let (store, report) = source.open(config, created)?;
            match report.recovered_ts < ts {
                false => Ok(store),
                true => Err(Error::Corrupt(format!(
                    "the last commit has timestamp {ts}, and recovery has found {} only",
                    report.recovered_ts
                ))),
            }
        };
        let opened = open(config).and_then(|store| {
            load_libraries(&store, &libraries)?;
            Ok(store)
        });
        let (store, error) = match opened {
            Ok(store) => (store, None),
            Err(error) => match open(old_config) {
                Ok(store) => {
                    if let Err(error) = load_libraries(&store, &libraries) {
                        tracing::error!(%error, "procedures are missing");
                    }
                    (store, Some(error))
                }
                Err(second) => {
                    tracing::error!(error = %second, "the store cannot be opened with its old configuration again");
                    return Err(RebuildError { error, store: None });
                }
            },
        };
        store.database().resume_handlers(handlers);
        match error {
            None => Ok(store),
            Some(error) => Err(stays(error, store)),
        }
    }
}

/// The data of a store whose database is replaced.
enum Source {
    /// It is in the data directory.
    DataDir(DataDir),
    /// It is in memory.
    Image(Image),
}

impl Source {
    fn open(
        &self,
        config: StoreConfig,
        created: &mut dyn FnMut(&Arc<Database>),
    ) -> Result<(Store, RecoveryReport)> {
        match self {
            Source::DataDir(data) => Store::open_in(config, data.clone(), &mut |_| (), created),
            Source::Image(image) => Store::fill_from_image(config, image, created),
        }
    }
}

impl Store {
    /// The source of another database, and the timestamp of the newest commit in it. [`Store::prepare_rebuild`] has taken the checkpoint.
    fn source(&self) -> Result<(Source, u64)> {
        match self.owned_data() {
            Some(data) => {
                let ts = self.checkpoint_status().last.map_or(0, |info| info.ts);
                Ok((Source::DataDir(data.clone()), ts))
            }
            None => {
                let image = self.image()?;
                let ts = image.ts();
                Ok((Source::Image(image), ts))
            }
        }
    }
}

/// Loads the libraries that are not those of the data directory.
fn load_libraries(store: &Store, libraries: &BTreeMap<String, Arc<[u8]>>) -> Result<()> {
    let loaded = store.database().libraries();
    let differs = |name: &&String| loaded.get(*name).is_some_and(|file| libraries.get(*name) != Some(file));
    // Their procedures may be in other libraries now.
    for library in loaded.keys().filter(differs) {
        store.database().unload_library(library)?;
    }
    for (library, file) in libraries.iter().filter(|(name, file)| loaded.get(*name) != Some(file)) {
        store.database().load_library(library, file, true)?;
    }
    Ok(())
}
