//! A new store from sorted records. Its pages become visible only after all of them are durable, so they need no log. Every
//! page is full, and is written once.
//!
//! The pages are those of a pool that was closed, with log sequence numbers of 0. So they match any log that has nothing to
//! repeat, and every later record is about a newer state of its page.

use std::path::Path;

use bedplate_bufpool::storage::Storage;
use bedplate_bufpool::{PageId, PageSize, Pool, TornPages};

use super::disk::Disk;
use super::error::{Error, Result};
use super::record::Checkpoint;
use super::replay::Replay;
use super::trees::{CATALOG_SLOT, catalog_value};
use crate::Tree;
use crate::descend::Handle;
use crate::journal::Logged;
use crate::tree::new_root;

/// The trees of a store that is being made.
pub(crate) struct Build {
    pool: Pool,
    /// Names, roots and ids.
    trees: Vec<(String, PageId, u64)>,
}

impl Build {
    /// Begins with an empty storage. Memory and capacity are in bytes.
    pub fn begin(storage: Box<dyn Storage>, memory: usize, capacity: u64, size: PageSize) -> Result<Self> {
        let pool = Pool::builder(Path::new(""))
            .memory(memory)
            .capacity(capacity)
            .page_size(size.bytes())
            .torn_pages(TornPages::Detect)
            .storage(storage)
            .open()?;
        // The catalog is filled at the end.
        Tree::create(&pool, CATALOG_SLOT)?;
        Ok(Self { pool, trees: Vec::new() })
    }

    /// The pool that contains the pages.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Makes a tree of sorted records. Names rise from call to call. The id is larger than 0, and no other tree has it.
    pub fn tree<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        name: &str,
        id: u64,
        records: impl Iterator<Item = (K, V)>,
    ) -> Result<u64> {
        let root = new_root(&self.pool, Logged(None))?;
        self.trees.push((name.to_owned(), root, id));
        Ok(Handle { pool: &self.pool, root, log: Logged(None) }.bulk_load(records)?)
    }

    /// Writes everything, and makes it durable.
    pub fn finish(self) -> Result<()> {
        let catalog = Tree::open(&self.pool, CATALOG_SLOT)?;
        catalog.bulk_load(self.trees.iter().map(|(name, root, id)| (name, catalog_value(*root, *id))))?;
        Ok(self.pool.close()?)
    }
}

/// Makes the log of a store that was built, durably. `timestamp` is that of the last commit, which is at least as large as
/// every id.
pub(crate) fn create_log(disk: std::sync::Arc<dyn Disk>, timestamp: u64) -> Result<()> {
    let (log, _) = Replay::open(disk)?;
    let lsn = log.checkpoint(Checkpoint { redo_from: log.end(), timestamp });
    log.make_durable(lsn).map_err(Error::Log)
}
