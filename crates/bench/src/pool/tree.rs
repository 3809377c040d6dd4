//! The B+tree on the buffer pool, on each of its engines.
//!
//! The pool has no transactions and no log of its own: `plain` adds the former. Durable trees have a log, and all that
//! belongs to it: pages are not written before their records, and twice; and what a crash leaves is recovered.

use std::path::Path;
use std::sync::Arc;

use bedplate_btree::{Journal, Tree};
use bedplate_bufpool::{Choice, Kind, Pool};

use super::log::Log;
use super::peers::Setting;
use super::plain::{Plain, PlainSession};
use super::recover::recover;
use super::store::{Expected, Store, Visit};
use crate::{Error, Result};

/// Address space for the storage.
const CAPACITY: u64 = 64 << 30;

/// A tree that fills a pool.
pub struct TreeStore {
    tree: Tree<Arc<Pool>>,
    log: Option<Arc<Log>>,
}

fn failed(problem: impl ToString) -> Error {
    Error::Store { store: "the B+tree", problem: problem.to_string() }
}

impl TreeStore {
    /// Opens what is in a directory, or makes it.
    pub fn open(directory: &Path, setting: Setting, engine: Kind) -> Result<Self> {
        let builder = Pool::builder(directory.join("pool"))
            .memory(setting.budget as usize)
            .capacity(CAPACITY)
            .engine(Choice::Only(engine));
        if !setting.durable {
            let pool = Arc::new(builder.open().map_err(failed)?);
            return Ok(Self { tree: Tree::open_or_create(pool, 0).map_err(failed)?, log: None });
        }
        let (log, records) = Log::open(&directory.join("log"))?;
        let log = Arc::new(log);
        let journal = || Arc::clone(&log) as Arc<dyn Journal>;
        let pool = Arc::new(builder.log(Arc::clone(&log) as _).open().map_err(failed)?);
        let tree = match (pool.needs_recovery(), pool.root(0)) {
            (_, 0) => {
                let tree = Tree::create_with(Arc::clone(&pool), 0, journal()).map_err(failed)?;
                // The root slot is not in the log.
                pool.sync().map_err(failed)?;
                tree
            }
            (true, _) => recover(pool, &log, &records).map_err(failed)?,
            (false, _) => {
                log.make_durable(log.clean()).map_err(failed)?;
                Tree::open_with(pool, 0, journal()).map_err(failed)?
            }
        };
        Ok(Self { tree, log: Some(log) })
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
        Ok(PlainSession::new(&self.tree, self.log.as_ref()))
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
    use std::fs;

    use super::*;
    use crate::pool::store::{Access, Session, Verdict};
    use crate::pool::suite;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn content(store: &TreeStore) -> Pairs {
        let mut all = Pairs::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            true
        };
        store.session().unwrap().scan(b"", None, &mut visit).unwrap();
        all
    }

    /// What a crash of the machine now would leave, and what is made of it: without the last bytes of the log.
    fn after_a_crash(directory: &Path, setting: Setting, torn: u64) -> Pairs {
        let copy = tempfile::tempdir().unwrap();
        for file in ["pool", "log"] {
            fs::copy(directory.join(file), copy.path().join(file)).unwrap();
        }
        let log = fs::OpenOptions::new().write(true).open(copy.path().join("log")).unwrap();
        log.set_len(log.metadata().unwrap().len() - torn).unwrap();
        let store = TreeStore::open(copy.path(), setting, Kind::Stock).unwrap();
        assert!(store.tree.pool().needs_recovery());
        store.tree.check().unwrap();
        content(&store)
    }

    #[test]
    fn a_durable_tree_has_after_a_crash_what_was_committed_and_nothing_else() {
        // With so little memory, pages are written all the time; with so much, none is.
        for budget in [1 << 20, 64 << 20] {
            let setting = Setting { budget, durable: true };
            let directory = tempfile::tempdir().unwrap();
            let store = TreeStore::open(directory.path(), setting, Kind::Stock).unwrap();
            suite::runs_tpcc(&store, 30);
            let before = content(&store);
            assert!(after_a_crash(directory.path(), setting, 0) == before);
            let mut session = store.session().unwrap();
            session.put(b"single", b"put").unwrap();
            let with_put = content(&store);
            assert!(with_put.len() == before.len() + 1);
            assert!(after_a_crash(directory.path(), setting, 0) == with_put);
            let verdict = session.transaction(Access::Write, &mut |tx| {
                tx.insert(b"new", b"1")?;
                assert!(tx.update(b"single", &mut |value| value.extend_from_slice(b"!"))?);
                assert!(tx.remove(&before[0].0)?);
                // Storage and the log have it now, and it must not be there nevertheless.
                store.tree.pool().flush().map_err(failed)?;
                assert!(after_a_crash(directory.path(), setting, 0) == with_put);
                Ok(Verdict::Commit)
            });
            assert_eq!(verdict.unwrap(), Verdict::Commit);
            let after = content(&store);
            assert!(after != with_put);
            assert!(after_a_crash(directory.path(), setting, 0) == after);
            // The record of the commit is torn.
            assert!(after_a_crash(directory.path(), setting, 1) == with_put);
        }
    }

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
