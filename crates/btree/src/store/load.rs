//! Loading a dump: into a new store, or into one that exists.
//!
//! *A new store* is built without a log (`build`), and published when it is complete (`site`).
//!
//! *A store that exists.* Each tree of the dump is loaded into a tree that the catalog does not have: the *staged* trees. They
//! are logged, and no transaction sees them. At the end of the dump, one commit gives all of them their names in the catalog. A
//! crash before that commit leaves pages that recovery frees. An error frees them at once. So a damaged dump changes nothing, and
//! a crash leaves all of the dump or nothing.
//!
//! *Merging* into existing trees puts the records of a staged tree by ordinary transactions. It may need several transactions, so
//! it is not atomic. But it begins only at the end of the dump, and can be repeated.

use std::io::Read;
use std::ops::Bound;
use std::path::Path;

use bedplate_bufpool::PageSize;

use super::Store;
use super::builder::MAX_CAPACITY;
use super::commit::{self, Applying, PageReservation};
use super::dump_format::{Reader, Totals};
use super::error::{Error, Result};
use super::limits::{LOG_BUFFER_BYTES, MAX_TREES, RESERVED_PER_TREE};
use super::log::Reservation;
use super::progress::Progress;
use super::record::Write;
use super::site::{NewDirectory, StoreSite};
use super::trees::{CATALOG, NamedTree, catalog_value};
use super::{build, build::Build};
use crate::overflow::part;
use crate::scan::{Direction, Range};

/// Bytes of pages in memory while a new store is made.
const MEMORY: usize = 64 << 20;
/// Number of records that are read between two calls of the progress.
const PROGRESS_RECORDS: u64 = 1000;
/// Records and bytes of one transaction of a merge.
const MERGE_RECORDS: usize = 10_000;
const MERGE_BYTES: usize = 4 << 20;

/// The treatment of a tree of the dump whose name the store has already, by [`Store::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadPolicy {
    /// The load fails with [`Error::TreeExists`], and nothing changes.
    #[default]
    Refuse,
    /// The tree of the dump replaces it, in the commit that adds the other trees.
    Replace,
    /// The records of the dump are put into it. This is not atomic. After an error or a crash, it may have some of the records,
    /// and loading again puts all of them.
    Merge,
}

/// The amounts that were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Trees.
    pub trees: u64,
    /// Records of all trees.
    pub records: u64,
    /// Bytes of the dump.
    pub bytes: u64,
}

impl From<Totals> for Load {
    fn from(totals: Totals) -> Self {
        Self { trees: totals.trees, records: totals.records, bytes: totals.bytes }
    }
}

/// The records of a tree of a dump. The iterator ends at an error, and keeps the error.
struct Records<'r, R: Read> {
    reader: &'r mut Reader<R>,
    error: Option<Error>,
    /// Runs before each record, with its size.
    before: &'r mut dyn FnMut(&Totals, usize) -> Result<()>,
}

impl<R: Read> Iterator for Records<'_, R> {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.reader.next_record().and_then(|record| {
            if let Some((_, value)) = &record {
                (self.before)(&self.reader.totals(), value.len())?;
            }
            Ok(record)
        });
        next.unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }
}

impl Store {
    /// Makes a new store from a dump, in a directory that does not exist or is empty. The directory appears when the store is
    /// complete and durable. After an error, it does not exist.
    ///
    /// The store has pages of 4 KiB. For a dump with keys that are too long for these, make an empty store with larger pages
    /// ([`Builder::page_size`](super::Builder::page_size)), and [`Store::load`] the dump into it.
    pub fn create_from_dump(
        directory: impl AsRef<Path>,
        input: impl Read,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Load> {
        create_from_dump(&mut NewDirectory::begin(directory.as_ref())?, MEMORY, input, progress)
    }

    /// Loads a dump into this store. A dump that is damaged or incomplete changes nothing.
    ///
    /// The trees appear at once and durably, whatever the durability of the store is. No transaction may be active at that
    /// moment, or the result is [`Error::Busy`] and nothing has changed.
    pub fn load(
        &self,
        input: impl Read,
        policy: LoadPolicy,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Load> {
        let mut reader = Reader::new(input)?;
        let mut staged = Staged { store: self, trees: Vec::new() };
        while let Some(name) = reader.next_tree()? {
            if policy == LoadPolicy::Refuse && self.tree(&name).is_ok() {
                return Err(Error::TreeExists(name));
            }
            staged.load(&name, &mut reader, progress)?;
        }
        staged.publish(policy)?;
        // Only trees to be merged are left.
        for tree in &staged.trees {
            self.merge(tree)?;
        }
        drop(staged);
        self.sync()?;
        Ok(reader.totals().into())
    }

    /// Puts the records of a staged tree into the tree of the same name.
    fn merge(&self, from: &NamedTree) -> Result<()> {
        let to = self.tree(from.name())?;
        let handle = self.handle(&from.0);
        let unbounded = || Bound::Unbounded;
        let mut scan = Range::new(handle, &from.0.density, Direction::Up, unbounded(), unbounded());
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let next = scan.try_next()?.map(|(key, value)| (key.to_vec(), value.to_vec()));
            let is_last = next.is_none();
            if let Some((key, value)) = next {
                bytes += key.len() + value.len();
                batch.push((key, value));
            }
            if is_last || batch.len() >= MERGE_RECORDS || bytes >= MERGE_BYTES {
                self.update(|transaction| {
                    batch.iter().try_for_each(|(key, value)| transaction.put(&to, key, value))
                })?;
                batch.clear();
                bytes = 0;
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Makes a store on a site.
pub(crate) fn create_from_dump(
    site: &mut dyn StoreSite,
    memory: usize,
    input: impl Read,
    progress: &mut dyn FnMut(Progress),
) -> Result<Load> {
    let mut reader = Reader::new(input)?;
    let mut build = Build::begin(site.pages()?, memory, MAX_CAPACITY, PageSize::default())?;
    let mut id = 0;
    while let Some(name) = reader.next_tree()? {
        id += 1;
        if id > MAX_TREES as u64 {
            return Err(Error::TooManyTrees);
        }
        let mut before = |totals: &Totals, _| {
            report(totals, progress);
            Ok(())
        };
        let mut records = Records { reader: &mut reader, error: None, before: &mut before };
        let loaded = build.tree(&name, id, &mut records);
        records.error.map_or(Ok(()), Err)?;
        loaded?;
    }
    build.finish()?;
    build::create_log(site.log(), id)?;
    site.publish()?;
    Ok(reader.totals().into())
}

fn report(totals: &Totals, progress: &mut dyn FnMut(Progress)) {
    if totals.records.is_multiple_of(PROGRESS_RECORDS) {
        progress(Progress { done: totals.bytes, total: 0 });
    }
}

/// Trees that the catalog does not have. Their pages are freed when this is dropped.
struct Staged<'s> {
    store: &'s Store,
    trees: Vec<NamedTree>,
}

impl<'s> Staged<'s> {
    /// Loads the next tree of a dump.
    fn load(
        &mut self,
        name: &str,
        reader: &mut Reader<impl Read>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let store = self.store;
        store.check()?;
        // The pages that complete the tree at its end also need space.
        let _pages = store.reserve_pages(RESERVED_PER_TREE)?;
        let _space = store.reserve_log_for_catalog()?;
        let tree = NamedTree::stage(name, store)?;
        self.trees.push(tree.clone());
        let mut space: Option<(Reservation<'s>, PageReservation<'s>)> = None;
        let mut before = |totals: &Totals, len: usize| {
            // The loader holds no page now, so neither a checkpoint nor a write of the log waits for the loader.
            let size = store.pool.page_size();
            let pages = (len.div_ceil(part(size)) as u64) + RESERVED_PER_TREE;
            // The previous record has its pages.
            drop(space.take());
            let set_aside = store.reserve_pages(pages)?;
            let log = store.log.reserve(pages * commit::image_bytes(size)).map_err(Error::no_space)?;
            space = Some((log, set_aside));
            if store.log.pending() >= LOG_BUFFER_BYTES {
                store.log.make_durable(store.log.end()).map_err(Error::Log)?;
            }
            store.checkpoint_if_due();
            report(totals, progress);
            Ok(())
        };
        let mut records = Records { reader, error: None, before: &mut before };
        let loaded = store.handle(&tree.0).bulk_load(&mut records);
        records.error.map_or(Ok(()), Err)?;
        loaded?;
        Ok(())
    }

    /// Gives the staged trees their names, in one commit. Trees that are to be merged into others stay.
    fn publish(&mut self, policy: LoadPolicy) -> Result<()> {
        let store = self.store;
        let guard = store.lock_commit()?;
        let closed = store.clock.close().ok_or(Error::Busy)?;
        let existing = |tree: &NamedTree| store.tree(tree.name()).ok();
        let (mut replaced, mut new, mut merged) = (Vec::new(), Vec::new(), Vec::new());
        for tree in &self.trees {
            match (existing(tree), policy) {
                (None, _) => new.push(tree.clone()),
                (Some(_), LoadPolicy::Refuse) => return Err(Error::TreeExists(tree.name().to_owned())),
                (Some(old), LoadPolicy::Replace) => {
                    replaced.push(old);
                    new.push(tree.clone());
                }
                (Some(_), LoadPolicy::Merge) => merged.push(tree.clone()),
            }
        }
        if store.trees().len() + new.len() - replaced.len() > MAX_TREES {
            return Err(Error::TooManyTrees);
        }
        if new.is_empty() {
            return Ok(());
        }
        // Ids are timestamps, so the commit takes as many as there are trees. The last one is its own.
        let first = store.clock.visible() + 1;
        let new: Vec<_> = (first..).zip(new).map(|(id, tree)| tree.with_id(id)).collect();
        let timestamp = first + new.len() as u64 - 1;
        let values: Vec<_> = new.iter().map(|tree| catalog_value(tree.0.root(), tree.0.id)).collect();
        let writes = || {
            new.iter().zip(&values).map(|(tree, value)| {
                let key = tree.name().as_bytes();
                Write { tree: CATALOG, key, value: Some(value) }
            })
        };
        let needed = store.catalog_needs(writes());
        let pages = store.reserve_pages(needed.pages)?;
        let _space = store.log.reserve(needed.log_bytes).map_err(Error::no_space)?;
        let lsn = store.log.commit(timestamp, writes());
        let applying = Applying::begin(&store.poisoned);
        // From here on they belong to the catalog, even if an error follows.
        self.trees = merged;
        for (tree, value) in new.iter().zip(&values) {
            store.catalog.upsert(tree.name().as_bytes(), value).map_err(Error::Interrupted)?;
        }
        store.replace_trees(new, &replaced);
        for old in &replaced {
            store.handle(&old.0).free_all().map_err(Error::Interrupted)?;
        }
        applying.end();
        store.clock.set_visible(timestamp);
        drop((pages, closed, guard));
        store.finish_commit(timestamp, lsn)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        for tree in &self.trees {
            // Pages that cannot be freed now are not lost forever: recovery or compaction frees them.
            let _ = self.store.handle(&tree.0).free_all();
        }
    }
}
