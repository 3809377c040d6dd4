//! The bare B+tree on the buffer pool, on each of its engines: no log, and so neither durable nor isolated. The
//! transactional store has both (`transactional`).

use std::path::Path;
use std::sync::Arc;

use bedplate_btree::Tree;
use bedplate_bufpool::{Choice, Kind, Pool};

use super::peers::Setting;
use super::plain::{Plain, PlainSession};
use super::store::{Each, Expected, Store, Visit, Waits};
use crate::{Error, Result};

/// Address space for the storage.
pub const CAPACITY: u64 = 64 << 30;

/// A tree that fills a pool.
pub struct TreeStore(Tree<Arc<Pool>>);

fn failed(problem: impl ToString) -> Error {
    Error::Store { store: "the B+tree", problem: problem.to_string() }
}

impl TreeStore {
    /// Opens the tree in a directory, or makes one.
    pub fn open(directory: &Path, setting: Setting, engine: Kind) -> Result<Self> {
        if setting.durable {
            return Err(failed("a tree without a log is not durable"));
        }
        let pool = Pool::builder(directory.join("pool"))
            .memory(setting.budget as usize)
            .capacity(CAPACITY)
            .engine(Choice::Only(engine))
            .open()
            .map_err(failed)?;
        Self::on(pool)
    }

    /// Opens the tree in a pool, or makes one.
    pub fn on(pool: Pool) -> Result<Self> {
        Ok(Self(Tree::open_or_create(Arc::new(pool), 0).map_err(failed)?))
    }

    /// Makes everything durable, so that the pool can be opened again. The caller must not use the store afterwards.
    #[cfg(target_arch = "x86_64")]
    pub fn close(&self) -> Result<()> {
        self.0.pool().close().map_err(failed)
    }

    /// The counts of the pool.
    #[cfg(target_arch = "x86_64")]
    pub fn statistics(&self) -> bedplate_bufpool::Statistics {
        self.0.pool().statistics()
    }
}

impl Drop for TreeStore {
    fn drop(&mut self) {
        // A warning is enough, because opening a pool that was not closed is an error.
        if let Err(problem) = self.0.pool().close() {
            tracing::warn!(%problem, "closing the pool");
        }
    }
}

impl Store for TreeStore {
    type Session<'s> = PlainSession<&'s Tree<Arc<Pool>>>;

    fn session(&self) -> Result<Self::Session<'_>> {
        Ok(PlainSession::new(&self.0))
    }

    fn waits(&self) -> Option<Waits> {
        Some(Waits::of_pool(&self.0.pool().statistics()))
    }

    fn settle(&self) -> Result<()> {
        self.0.pool().sync().map_err(failed)
    }
}

impl Plain for &Tree<Arc<Pool>> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get_into(key, value).map_err(failed)
    }

    fn get_many(&mut self, keys: &[&[u8]], each: Each<'_>) -> Result<()> {
        Tree::get_many(self, keys, each).map_err(failed)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.upsert(key, value).map(drop).map_err(failed)
    }

    fn put_many(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| *key).collect();
        self.warm(&keys).map_err(failed)?;
        pairs.iter().try_for_each(|(key, value)| self.put(key, value))
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Tree::remove(self, key).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        let mut range = self.range(from..);
        if let Some(records) = expected {
            range = range.expecting(records);
        }
        while let Some((key, value)) = range.try_next().map_err(failed)? {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::suite;

    #[test]
    fn trees_are_stores_on_every_engine() {
        for engine in [Kind::Array, Kind::Stock, Kind::Vmcache, Kind::Hashtable] {
            // The budget is so small that pages are evicted all the time.
            let setting = Setting { budget: 1 << 20, durable: false };
            let directory = tempfile::tempdir().unwrap();
            suite::behaves(&TreeStore::open(directory.path(), setting, engine).unwrap());
            suite::remembers(&TreeStore::open(directory.path(), setting, engine).unwrap());
            let directory = tempfile::tempdir().unwrap();
            let store = TreeStore::open(directory.path(), setting, engine).unwrap();
            suite::runs_tpcc(&store, 500);
            store.0.check().unwrap();
        }
    }
}
