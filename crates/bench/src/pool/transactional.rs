//! Bedplate's transactional store: the B+tree with its log, its snapshots and its serializable transactions.

use std::path::Path;

use bedplate_btree::store::{self, Durability, NamedTree, ReadTransaction, WriteTransaction};
use bedplate_bufpool::{Choice, Kind};

use super::peers::Setting;
use super::store::{Access, Body, Each, Expected, Session, Store, Transaction, Verdict, Visit, Waits};
use super::tree::CAPACITY;
use crate::{Error, Result};

/// The name of the one tree.
const TREE: &str = "data";

/// A store with one tree. It is closed when it is dropped.
pub struct TransactionalStore {
    /// `None` while it is dropped.
    store: Option<store::Store>,
    tree: NamedTree,
}

fn failed(problem: impl ToString) -> Error {
    Error::Store { store: "the store", problem: problem.to_string() }
}

impl TransactionalStore {
    /// Opens the store in a directory, or makes one. Commits are asynchronous if it does not have to be durable.
    pub fn open(directory: &Path, setting: Setting, engine: Kind) -> Result<Self> {
        let durability = if setting.durable { Durability::Sync } else { Durability::Async };
        let store = store::Store::builder(directory)
            .memory(setting.budget as usize)
            .capacity(CAPACITY)
            .engine(Choice::Only(engine))
            .durability(durability)
            .open()
            .map_err(failed)?;
        let tree = match store.tree(TREE) {
            Err(store::Error::NoSuchTree(_)) => store.create_tree(TREE),
            tree => tree,
        };
        Ok(Self { tree: tree.map_err(failed)?, store: Some(store) })
    }

    fn store(&self) -> &store::Store {
        self.store.as_ref().expect("it is not being dropped")
    }
}

impl Drop for TransactionalStore {
    fn drop(&mut self) {
        if let Some(Err(problem)) = self.store.take().map(store::Store::close) {
            tracing::warn!(%problem, "closing the store");
        }
    }
}

impl Store for TransactionalStore {
    type Session<'s> = &'s TransactionalStore;

    fn session(&self) -> Result<&TransactionalStore> {
        Ok(self)
    }

    fn isolates(&self) -> bool {
        true
    }

    fn waits(&self) -> Option<Waits> {
        let pool = Waits::of_pool(&self.store().pool_statistics());
        Some(Waits { commit: self.store().statistics().commit_waits, ..pool })
    }

    fn settle(&self) -> Result<()> {
        self.store().checkpoint().map_err(failed)
    }
}

impl Session for &TransactionalStore {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let read = self.store().read().map_err(failed)?;
        found(read.get(&self.tree, key), value)
    }

    fn get_many(&mut self, keys: &[&[u8]], each: Each<'_>) -> Result<()> {
        let read = self.store().read().map_err(failed)?;
        let values = read.get_many(&self.tree, keys).map_err(failed)?;
        values.iter().enumerate().for_each(|(index, value)| each(index, value.as_deref()));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store().update(|transaction| transaction.put(&self.tree, key, value)).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        let read = self.store().read().map_err(failed)?;
        each(read.cursor(&self.tree, from..), expected, visit)
    }

    fn transaction(&mut self, access: Access, body: Body<'_>) -> Result<Verdict> {
        if access == Access::Read {
            let read = self.store().read().map_err(failed)?;
            return body(&mut Reading { read, tree: &self.tree });
        }
        let ended = self.store().try_update(|transaction| {
            match body(&mut Writing { transaction, tree: &self.tree, value: Vec::new() }) {
                Ok(Verdict::Commit) => Ok(()),
                Ok(Verdict::RollBack) => Err(End::RollBack),
                Err(error) => Err(End::Failed(error)),
            }
        });
        match ended {
            Ok(()) => Ok(Verdict::Commit),
            Err(End::RollBack) => Ok(Verdict::RollBack),
            Err(End::Failed(error)) => Err(error),
        }
    }
}

/// The reason why a transaction is undone.
enum End {
    RollBack,
    Failed(Error),
}

impl From<store::Error> for End {
    fn from(error: store::Error) -> Self {
        Self::Failed(failed(error))
    }
}

/// Puts a found value into `value`; `false` if there is none.
fn found(result: store::Result<Option<Vec<u8>>>, value: &mut Vec<u8>) -> Result<bool> {
    let found = result.map_err(failed)?;
    let is_there = found.is_some();
    *value = found.unwrap_or_default();
    Ok(is_there)
}

/// Visits the records of a cursor until the visitor has enough.
fn each(cursor: store::Result<store::Cursor<'_>>, expected: Expected, visit: Visit<'_>) -> Result<()> {
    let mut cursor = cursor.map_err(failed)?;
    if let Some(records) = expected {
        cursor = cursor.expecting(records);
    }
    while let Some((key, value)) = cursor.try_next().map_err(failed)? {
        if !visit(key, value) {
            break;
        }
    }
    Ok(())
}

struct Reading<'t> {
    read: ReadTransaction<'t>,
    tree: &'t NamedTree,
}

impl Transaction for Reading<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        found(self.read.get(self.tree, key), value)
    }

    fn insert(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(failed("the transaction only reads"))
    }

    fn update(&mut self, _: &[u8], _: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        Err(failed("the transaction only reads"))
    }

    fn remove(&mut self, _: &[u8]) -> Result<bool> {
        Err(failed("the transaction only reads"))
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        each(self.read.cursor(self.tree, from..), expected, visit)
    }
}

struct Writing<'t, 's> {
    transaction: &'t mut WriteTransaction<'s>,
    tree: &'t NamedTree,
    value: Vec<u8>,
}

impl Transaction for Writing<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        found(self.transaction.get(self.tree, key), value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.put(self.tree, key, value).map_err(failed)
    }

    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        if !found(self.transaction.get(self.tree, key), &mut self.value)? {
            return Ok(false);
        }
        change(&mut self.value);
        self.transaction.put(self.tree, key, &self.value).map_err(failed)?;
        Ok(true)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.transaction.remove(self.tree, key).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        each(self.transaction.cursor(self.tree, from..), expected, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::suite;

    #[test]
    fn the_store_is_a_store_on_every_engine() {
        for engine in [Kind::Array, Kind::Stock, Kind::Vmcache, Kind::Hashtable] {
            for durable in [false, true] {
                // The budget is so small that pages are evicted all the time.
                let setting = Setting { budget: 1 << 20, durable };
                let directory = tempfile::tempdir().unwrap();
                suite::behaves(&TransactionalStore::open(directory.path(), setting, engine).unwrap());
                suite::remembers(&TransactionalStore::open(directory.path(), setting, engine).unwrap());
                let directory = tempfile::tempdir().unwrap();
                let store = TransactionalStore::open(directory.path(), setting, engine).unwrap();
                suite::runs_tpcc(&store, if durable { 20 } else { 500 });
            }
        }
    }
}
