//! The B+tree on the buffer pool, on each of its engines.
//!
//! The pool has no transactions and no log of its own: `plain` adds what the workloads need of both.

use std::path::Path;
use std::sync::Arc;

use bedplate_btree::Tree;
use bedplate_bufpool::{Choice, Kind, Pool};

use super::log::Log;
use super::peers::Setting;
use super::plain::{Plain, PlainSession, Shared};
use super::store::{Store, Visit};
use crate::{Error, Result};

/// Address space for the storage.
const CAPACITY: u64 = 64 << 30;

/// A tree that fills a pool.
pub struct TreeStore {
    tree: Tree<Arc<Pool>>,
    shared: Shared,
}

fn failed(problem: impl ToString) -> Error {
    Error::Store { store: "the B+tree", problem: problem.to_string() }
}

impl TreeStore {
    /// Opens what is in a directory, or makes it.
    pub fn open(directory: &Path, setting: Setting, engine: Kind) -> Result<Self> {
        let pool = Pool::builder(directory.join("pool"))
            .memory(setting.budget as usize)
            .capacity(CAPACITY)
            .engine(Choice::Only(engine))
            .open()
            .map_err(failed)?;
        let log = if setting.durable { Some(Log::create(&directory.join("log"))?) } else { None };
        let tree = Tree::open_or_create(Arc::new(pool), 0).map_err(failed)?;
        Ok(Self { tree, shared: Shared::new(log) })
    }
}

impl Drop for TreeStore {
    fn drop(&mut self) {
        // A pool that could not be closed is not opened again without saying so.
        if let Err(problem) = self.tree.pool().close() {
            tracing::warn!(%problem, "closing the pool");
        }
    }
}

impl Store for TreeStore {
    type Session<'s> = PlainSession<'s, &'s Tree<Arc<Pool>>>;

    fn session(&self) -> Result<Self::Session<'_>> {
        Ok(PlainSession::new(&self.tree, &self.shared))
    }

    fn settle(&self) -> Result<()> {
        self.tree.pool().sync().map_err(failed)
    }
}

impl Plain for &Tree<Arc<Pool>> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get_into(key, value).map_err(failed)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.upsert(key, value).map(drop).map_err(failed)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Tree::remove(self, key).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], visit: Visit<'_>) -> Result<()> {
        let mut range = self.range(from..);
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
        for engine in [Kind::Stock, Kind::Vmcache, Kind::Hashtable] {
            for durable in [false, true] {
                // So small that pages come and go all the time.
                let setting = Setting { budget: 1 << 20, durable };
                let directory = tempfile::tempdir().unwrap();
                suite::behaves(&TreeStore::open(directory.path(), setting, engine).unwrap());
                suite::remembers(&TreeStore::open(directory.path(), setting, engine).unwrap());
                let directory = tempfile::tempdir().unwrap();
                let store = TreeStore::open(directory.path(), setting, engine).unwrap();
                suite::runs_tpcc(&store, if durable { 20 } else { 500 });
                store.tree.check().unwrap();
            }
        }
    }
}
