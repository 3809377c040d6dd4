//! Committing: validation, the commit record, and applying the writes.
//!
//! Commits run one at a time under the commit mutex. Until the commit record is appended, nothing has changed, and an error does
//! no harm. Before a commit takes the mutex, the leaves of its writes are read into memory. Then, in this order:
//!
//! 1. The read set is validated against the versions, which have the keys of each commit after the snapshot.
//! 2. The old value of each key is read. Removals of keys that are absent are left out.
//! 3. The pool makes room for the worst case of new pages, and the log reserves space for the worst case of records. So neither
//!    applying nor writing the log fails for lack of space.
//! 4. The old values go to the versions, then the record to the log, then the new values to the trees. From the record
//!    on, an error poisons the store: only recovery can complete the commit.
//! 5. The commit becomes visible, and the mutex is released.
//! 6. The log becomes durable, for all commits that wait for it at once.
//!
//! *Serializability.* Commits are serialized in the order of timestamps. A transaction that validates at timestamp `c` has read at
//! its snapshot what it would read just before `c`, ranges included, because no commit in between wrote a key of it.
//! It writes at `c` what it would write then. A read-only transaction is serialized at its snapshot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use bedplate_bufpool::PageSize;

use super::error::{Error, Result};
use super::limits::{LOG_BUFFER_BYTES, MAX_TRANSACTION_BYTES, MAX_WARM_WRITES, RESERVED_PER_TREE};
use super::log::Reservation;
use super::read_set::ReadSet;
use super::record::{self, HEAD, Write};
use super::statistics::Counters;
use super::trees::Entry;
use super::versions::{Old, Superseded};
use super::write_set::WriteSet;
use super::{Durability, Store};
use crate::overflow::part;
use crate::read::Room;
use crate::write::{Existing, is_long};

/// The time from the commit record until all writes are in the trees. If it does not end normally, for example because of a
/// panic, the store is poisoned.
pub(crate) struct Applying<'s>(&'s AtomicBool);

impl<'s> Applying<'s> {
    pub fn begin(poisoned: &'s AtomicBool) -> Self {
        Self(poisoned)
    }

    /// Must be called when all writes are in the trees.
    pub fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A write that changes something.
struct Change<'w> {
    entry: &'w Entry,
    key: &'w Arc<[u8]>,
    new: Option<&'w [u8]>,
    old: Old,
}

impl Change<'_> {
    fn write(&self) -> Write<'_> {
        Write { tree: self.entry.id, key: self.key, value: self.new }
    }
}

/// Pages that are reserved for a commit or a load until this is dropped.
#[must_use = "the pages are set aside only while this lives"]
pub(crate) struct PageReservation<'s> {
    promised: &'s Mutex<u64>,
    pages: u64,
}

impl Drop for PageReservation<'_> {
    fn drop(&mut self) {
        *self.promised.lock().unwrap_or_else(PoisonError::into_inner) -= self.pages;
    }
}

/// Upper limits of the space that applying a commit takes.
pub(crate) struct Needed {
    pub pages: u64,
    pub log_bytes: u64,
}

/// Maximum number of pages whose images one change of structure has.
const IMAGES_PER_CHANGE: u64 = 3;

/// Bytes of the log that an image of a page of this size takes, with its share of the record's head.
pub(crate) const fn image_bytes(size: PageSize) -> u64 {
    (size.bytes() + HEAD) as u64
}

impl Store {
    /// Reserves the log space for the worst case of creating or dropping a tree: images of the new root, and of pages of the
    /// catalog.
    pub(crate) fn reserve_log_for_catalog(&self) -> Result<Reservation<'_>> {
        let bytes = IMAGES_PER_CHANGE * RESERVED_PER_TREE * image_bytes(self.pool.page_size());
        self.log.reserve(bytes).map_err(Error::no_space)
    }

    /// Takes the commit mutex of a store that can be used. If a panic of a holder left a commit partly applied, it has poisoned
    /// the store.
    pub(crate) fn lock_commit(&self) -> Result<MutexGuard<'_, ()>> {
        let guard = match self.commit.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                Counters::add(&self.counters.commit_waits);
                self.commit.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        self.check()?;
        Ok(guard)
    }

    /// Reserves pages, in addition to those that others have reserved and may not have allocated yet. Loads allocate pages
    /// without the commit mutex, so a commit whose record is in the log would fail if a load took its pages.
    pub(crate) fn reserve_pages(&self, pages: u64) -> Result<PageReservation<'_>> {
        let mut promised = self.promised_pages.lock().unwrap_or_else(PoisonError::into_inner);
        self.pool.reserve(*promised + pages)?;
        *promised += pages;
        Ok(PageReservation { promised: &self.promised_pages, pages })
    }

    /// Reads the leaves into memory that a transaction is going to change, so that its commit does not wait for storage while
    /// other threads wait for the mutex.
    pub(crate) fn warm(&self, writes: &WriteSet) -> Result<()> {
        for (tree, writes) in writes.trees() {
            let keys: Vec<&[u8]> = writes.keys().map(|key| &**key).take(MAX_WARM_WRITES).collect();
            self.handle(&tree.0).warm(&keys)?;
        }
        Ok(())
    }

    /// Commits a transaction that began at a snapshot. `begin` is the time when its commit was called.
    pub(crate) fn commit(
        &self,
        begin: Instant,
        guard: MutexGuard<'_, ()>,
        snapshot: u64,
        reads: &ReadSet,
        writes: &WriteSet,
    ) -> Result<()> {
        if reads.is_changed(&self.versions, snapshot)? {
            Counters::add(&self.counters.conflicts);
            return Err(Error::Conflict);
        }
        let changes = self.changes(writes)?;
        if changes.is_empty() {
            drop(guard);
            return self.wait_for(snapshot);
        }
        let needed = self.needed(&changes);
        let pages = self.reserve_pages(needed.pages)?;
        let _space = self.log.reserve(needed.log_bytes).map_err(Error::no_space)?;
        let timestamp = self.clock.visible() + 1;
        self.versions.insert(
            timestamp,
            changes.iter().map(|change| Superseded {
                tree: change.entry.id,
                key: Arc::clone(change.key),
                old: change.old.clone(),
            }),
        );
        let lsn = self.log.commit(timestamp, changes.iter().map(Change::write));
        let applying = Applying::begin(&self.poisoned);
        for Change { entry, key, new, .. } in &changes {
            let tree = self.handle(entry);
            let done = match new {
                Some(value) => tree.put(key, value, Existing::Replace),
                None => tree.remove(key),
            };
            done.map_err(Error::Interrupted)?;
        }
        applying.end();
        self.clock.set_visible(timestamp);
        drop((pages, guard));
        Counters::add(&self.counters.commits);
        self.finish_commit(timestamp, lsn)?;
        self.commit_latency.record(begin);
        Ok(())
    }

    /// Makes a visible commit durable, removes old versions, and makes a checkpoint if one is due.
    pub(crate) fn finish_commit(&self, timestamp: u64, lsn: u64) -> Result<()> {
        match self.durability {
            Durability::Sync => self.log.make_durable(lsn),
            Durability::Async => self.log.write_if_long(LOG_BUFFER_BYTES),
        }
        .map_err(Error::Log)?;
        self.versions.prune(self.clock.set_durable(timestamp));
        self.checkpoint_if_due();
        Ok(())
    }

    /// Waits until a snapshot is durable. Then a crash undoes no commit that the transaction has read.
    fn wait_for(&self, snapshot: u64) -> Result<()> {
        if self.durability == Durability::Sync {
            self.log.make_durable(self.log.end()).map_err(Error::Log)?;
            self.versions.prune(self.clock.set_durable(snapshot));
        }
        Ok(())
    }

    /// The writes that change something, with the old values.
    fn changes<'w>(&self, writes: &'w WriteSet) -> Result<Vec<Change<'w>>> {
        let mut changes = Vec::new();
        let mut bytes = writes.bytes();
        let mut room = Room::new();
        for (tree, writes) in writes.trees() {
            self.usable(tree)?;
            for (key, new) in writes {
                let old: Old = self.handle(&tree.0).get(key, &mut room)?.then(|| Arc::from(room.value()));
                bytes += old.as_ref().map_or(0, |old| old.len());
                if bytes > MAX_TRANSACTION_BYTES {
                    return Err(Error::TransactionTooLarge);
                }
                if old.is_some() || new.is_some() {
                    changes.push(Change { entry: &tree.0, key, new: new.as_deref(), old });
                }
            }
        }
        Ok(changes)
    }

    /// Upper limits for a commit that writes only the catalog, whose leaves are all at least a fifth full.
    pub(crate) fn catalog_needs<'w>(&self, writes: impl Iterator<Item = Write<'w>> + Clone) -> Needed {
        let existing = self.trees().len() as u64 / 3 + 2;
        let bytes: usize = writes.clone().map(|write| write.key.len() + 64).sum();
        let leaves = existing + bytes as u64 / 500 + 1;
        let restructured = 3 * leaves + 3 * leaves / 2 + RESERVED_PER_TREE;
        let image_bytes = image_bytes(self.pool.page_size());
        let log_bytes = record::commit_bytes(writes) + IMAGES_PER_CHANGE * restructured * image_bytes;
        Needed { pages: 2 * leaves + RESERVED_PER_TREE, log_bytes }
    }

    /// Upper limits for applying changes.
    ///
    /// *Pages.* A put splits at most two leaves, because a record takes less than half of one. Nor can there be more splits than leaves
    /// that are full, which exist, and leaves that the new bytes fill, each at least a quarter. Inner nodes split
    /// once for several leaves, and a whole path at most once for each tree besides.
    ///
    /// *Log.* A split, a redistribution and a merge have images of at most [`IMAGES_PER_CHANGE`] pages. A change leads to at most two
    /// splits, or one of the others, on the level of the leaves, and there are two more for the parents. Nor are there more
    /// than three for each leaf that exists, and three for each 500 bytes that are new: a redistribution leaves an eighth of a leaf
    /// free, and a merge takes a leaf away. Larger leaves than those of 4 KiB take more bytes, so there are fewer of these changes.
    /// The images are larger. Each overflow page has an image, and so has a leaf when a reference in it changes.
    fn needed(&self, changes: &[Change<'_>]) -> Needed {
        let size = self.pool.page_size();
        let (mut overflow, mut puts, mut bytes, mut trees) = (0, 0, 0, 0);
        let mut references = 0;
        let mut last = None;
        for Change { entry, key, new, old } in changes {
            trees += u64::from(last.replace(entry.id) != Some(entry.id));
            let is_reference = |value: &[u8]| is_long(size, key, value);
            references +=
                u64::from(new.is_some_and(is_reference) || old.as_deref().is_some_and(is_reference));
            let Some(value) = new else { continue };
            puts += 1;
            if is_long(size, key, value) {
                overflow += value.len().div_ceil(part(size)) as u64;
                bytes += key.len() as u64 + 32;
            } else {
                bytes += (key.len() + value.len()) as u64 + 32;
            }
        }
        let existing = self.pool.pages_in_use();
        let leaves = (2 * puts).min(existing + bytes / 1000 + 1);
        let pages = overflow + leaves + leaves / 2 + trees * RESERVED_PER_TREE;
        let restructured = (4 * changes.len() as u64).min(3 * (existing + bytes / 500 + 1));
        let restructured = restructured + restructured / 2 + trees * RESERVED_PER_TREE;
        let images = overflow + references + IMAGES_PER_CHANGE * restructured;
        let log_bytes = record::commit_bytes(changes.iter().map(Change::write)) + images * image_bytes(size);
        Needed { pages, log_bytes }
    }
}
