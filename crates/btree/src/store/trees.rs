//! Named trees, and the catalog that contains them.
//!
//! The catalog is the tree in root slot 0 of the pool. It maps the name of a tree to the page of its root (8 bytes) and its
//! id (8). The root's page never changes while the tree exists. The id is the timestamp of the commit that created the tree,
//! so no two trees ever have the same id, even if one later uses the pages of the other. In the log, the catalog has the id 0.
//!
//! Creating and dropping are commits of their own, which write the catalog. A tree is dropped only while no snapshot
//! is active, because snapshots read the tree's pages.
//!
//! Locks: the commit mutex, then `trees`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use bedplate_bufpool::{PageId, Pool};

use super::error::{Error, Result};
use super::limits::{MAX_TREE_NAME, MAX_TREES, RESERVED_PER_TREE};
use super::log::Log;
use super::record::Write;
use super::{Store, commit};
use crate::Tree;
use crate::descend::Handle;
use crate::journal::Logged;
use crate::read_ahead::Density;
use crate::tree::new_root;

/// The id of the catalog.
pub(crate) const CATALOG: u64 = 0;
/// The root slot of the catalog.
pub(crate) const CATALOG_SLOT: usize = 0;

/// A tree of a [`Store`], which is an argument of every read and write. Clones are the same tree.
#[derive(Clone)]
pub struct NamedTree(pub(crate) Arc<Entry>);

pub(crate) struct Entry {
    pub name: String,
    pub id: u64,
    /// The number of the store that has the tree, in this process.
    pub store: u64,
    root: PageId,
    pub density: Density,
    dropped: AtomicBool,
}

impl Entry {
    /// The page of the root.
    pub fn root(&self) -> PageId {
        self.root
    }

    /// The tree, for operations on it. An entry has no pool of its own, so that a [`NamedTree`] that outlives its store does
    /// not keep the store's files open.
    pub fn handle<'p>(&self, pool: &'p Pool, log: &'p Log) -> Handle<'p> {
        Handle { pool, root: self.root, log: Logged(Some(log)) }
    }
}

impl NamedTree {
    /// A new tree that the catalog does not have.
    pub(crate) fn stage(name: &str, store: &Store) -> Result<Self> {
        let root = new_root(&store.pool, Logged(Some(&*store.log)))?;
        Ok(Self::new(name.to_owned(), 0, store.number, root))
    }

    /// The same tree with the id that the catalog gives it.
    pub(crate) fn with_id(&self, id: u64) -> Self {
        Self::new(self.0.name.clone(), id, self.0.store, self.0.root)
    }

    fn new(name: String, id: u64, store: u64, root: PageId) -> Self {
        let (density, dropped) = (Density::default(), AtomicBool::new(false));
        Self(Arc::new(Entry { name, id, store, root, density, dropped }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Debug for NamedTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NamedTree").field(&self.0.name).finish()
    }
}

/// The catalog's value of a tree.
pub(crate) fn catalog_value(root: PageId, id: u64) -> Vec<u8> {
    [root.0.to_le_bytes(), id.to_le_bytes()].concat()
}

/// The trees of a store by name.
pub(crate) type Trees = BTreeMap<String, NamedTree>;

/// All trees that the catalog has.
pub(crate) fn open_all(catalog: &Tree<Arc<Pool>>, store: u64) -> Result<Trees> {
    let mut trees = Trees::new();
    let mut range = catalog.iter();
    while let Some((name, value)) = range.try_next()? {
        let (Ok(name), [root, id]) = (std::str::from_utf8(name), value.as_chunks::<8>().0) else {
            return Err(Error::Missing("the catalog has an entry that makes no sense"));
        };
        let (root, id) = (PageId(u64::from_le_bytes(*root)), u64::from_le_bytes(*id));
        trees.insert(name.to_owned(), NamedTree::new(name.to_owned(), id, store, root));
    }
    Ok(trees)
}

impl Store {
    /// The tree of this name.
    pub fn tree(&self, name: &str) -> Result<NamedTree> {
        self.check()?;
        self.trees_read().get(name).cloned().ok_or_else(|| Error::NoSuchTree(name.to_owned()))
    }

    /// The names of all trees, in order.
    pub fn trees(&self) -> Vec<String> {
        self.trees_read().keys().cloned().collect()
    }

    /// Creates an empty tree. It is durable when this returns, unless durability is asynchronous.
    pub fn create_tree(&self, name: &str) -> Result<NamedTree> {
        if !(1..=MAX_TREE_NAME).contains(&name.len()) {
            return Err(Error::TreeName);
        }
        let guard = self.lock_commit()?;
        let trees = self.trees_read().len();
        if self.trees_read().contains_key(name) {
            return Err(Error::TreeExists(name.to_owned()));
        }
        if trees >= MAX_TREES {
            return Err(Error::TooManyTrees);
        }
        let pages = self.reserve_pages(2 * RESERVED_PER_TREE)?;
        let _space = self.reserve_log_for_catalog()?;
        let timestamp = self.clock.visible() + 1;
        // A crash before the commit leaves a page that recovery frees.
        let root = new_root(&self.pool, Logged(Some(&*self.log)))?;
        let value = catalog_value(root, timestamp);
        let write = Write { tree: CATALOG, key: name.as_bytes(), value: Some(&value) };
        let lsn = self.log.commit(timestamp, std::iter::once(write));
        let applying = commit::Applying::begin(&self.poisoned);
        self.catalog.upsert(name.as_bytes(), &value).map_err(Error::Interrupted)?;
        applying.end();
        let tree = NamedTree::new(name.to_owned(), timestamp, self.number, root);
        self.trees_write().insert(name.to_owned(), tree.clone());
        self.clock.set_visible(timestamp);
        drop((pages, guard));
        self.finish_commit(timestamp, lsn)?;
        Ok(tree)
    }

    /// Removes a tree and frees its pages. Fails with [`Error::Busy`] while a transaction is active.
    pub fn drop_tree(&self, name: &str) -> Result<()> {
        let guard = self.lock_commit()?;
        let closed = self.clock.close().ok_or(Error::Busy)?;
        let tree = self.trees_read().get(name).cloned();
        let NamedTree(entry) = tree.ok_or_else(|| Error::NoSuchTree(name.to_owned()))?;
        let timestamp = self.clock.visible() + 1;
        let _space = self.reserve_log_for_catalog()?;
        let write = Write { tree: CATALOG, key: name.as_bytes(), value: None };
        let lsn = self.log.commit(timestamp, std::iter::once(write));
        let applying = commit::Applying::begin(&self.poisoned);
        entry.dropped.store(true, Ordering::Release);
        self.trees_write().remove(name);
        self.catalog.remove(name.as_bytes()).map_err(Error::Interrupted)?;
        self.handle(&entry).free_all().map_err(Error::Interrupted)?;
        applying.end();
        self.clock.set_visible(timestamp);
        drop((closed, guard));
        self.finish_commit(timestamp, lsn)
    }

    /// Adds trees that the catalog has now. The trees that they replace are dropped, and uses of their handles fail from now on.
    pub(crate) fn replace_trees(&self, new: Vec<NamedTree>, replaced: &[NamedTree]) {
        replaced.iter().for_each(|old| old.0.dropped.store(true, Ordering::Release));
        self.trees_write().extend(new.into_iter().map(|tree| (tree.name().to_owned(), tree)));
    }

    /// A tree of this store, for operations on it.
    pub(crate) fn handle(&self, entry: &Entry) -> Handle<'_> {
        entry.handle(&self.pool, &self.log)
    }

    /// Whether a transaction of this store can use a tree.
    pub(crate) fn usable<'t>(&self, tree: &'t NamedTree) -> Result<&'t Entry> {
        self.check()?;
        let entry = &*tree.0;
        if entry.store != self.number {
            return Err(Error::OtherStore(entry.name.clone()));
        }
        if entry.dropped.load(Ordering::Acquire) {
            return Err(Error::NoSuchTree(entry.name.clone()));
        }
        Ok(entry)
    }

    fn trees_read(&self) -> RwLockReadGuard<'_, Trees> {
        self.trees.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn trees_write(&self) -> RwLockWriteGuard<'_, Trees> {
        self.trees.write().unwrap_or_else(PoisonError::into_inner)
    }
}
