//! Transactions: reading at a snapshot, and collecting the writes of a commit.

use std::cell::RefCell;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;
use std::time::Instant;

use super::clock::Sees;
use super::cursor::{Cursor, Records, Source};
use super::error::{Error, Result};
use super::limits::{MAX_TRANSACTION_WRITES, UPDATE_ATTEMPTS};
use super::read_set::ReadSet;
use super::trees::{Entry, NamedTree};
use super::write_set::WriteSet;
use super::{Durability, Store};
use crate::LONGEST_KEY;
use crate::read::Room;
use crate::scan::Direction;
use crate::write::check_limits;

/// The store of a transaction: borrowed, or shared.
pub(crate) enum StoreRef<'s> {
    Borrowed(&'s Store),
    Shared(Arc<Store>),
}

impl Deref for StoreRef<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        match self {
            Self::Borrowed(store) => store,
            Self::Shared(store) => store,
        }
    }
}

/// An active snapshot.
pub(crate) struct Snapshot<'s> {
    pub store: StoreRef<'s>,
    pub timestamp: u64,
}

impl<'s> Snapshot<'s> {
    fn begin(store: StoreRef<'s>, sees: Sees) -> Result<Self> {
        store.check()?;
        let timestamp = store.clock.begin(sees);
        Ok(Self { store, timestamp })
    }

    /// The value of a key. It reads the tree first, and then the versions.
    fn get(&self, entry: &Entry, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut room = Room::new();
        let newest = self.store.handle(entry).get(key, &mut room)?.then(|| room.value().to_vec());
        let old = self.store.versions.get(entry.id, key, self.timestamp)?;
        Ok(old.map_or(newest, |old| old.map(|old| old.to_vec())))
    }

    /// The values of several keys, in the order of the keys.
    fn get_many<K: AsRef<[u8]>>(&self, entry: &Entry, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        let tree = self.store.handle(entry);
        tree.get_many(keys, |key, value| values[key] = value.map(<[u8]>::to_vec))?;
        for (key, value) in keys.iter().zip(&mut values) {
            if let Some(old) = self.store.versions.get(entry.id, key.as_ref(), self.timestamp)? {
                *value = old.map(|old| old.to_vec());
            }
        }
        Ok(values)
    }

    fn contains(&self, entry: &Entry, key: &[u8]) -> Result<bool> {
        let newest = self.store.handle(entry).contains(key)?;
        let old = self.store.versions.get(entry.id, key, self.timestamp)?;
        Ok(old.map_or(newest, |old| old.is_some()))
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        self.store.versions.prune(self.store.clock.end(self.timestamp));
    }
}

/// A transaction that reads a snapshot: the store as it was when the transaction began.
///
/// It never waits for writers, and writers never wait for it. With synchronous durability, it only sees durable commits.
pub struct ReadTransaction<'s> {
    snapshot: Snapshot<'s>,
}

/// An optimistic transaction: it reads at its snapshot, keeps its writes to itself, and is validated when it commits.
///
/// A drop without [`WriteTransaction::commit`] undoes it.
pub struct WriteTransaction<'s> {
    snapshot: Snapshot<'s>,
    reads: RefCell<ReadSet>,
    writes: WriteSet,
}

impl Store {
    /// Begins a read-only transaction.
    pub fn read(&self) -> Result<ReadTransaction<'_>> {
        ReadTransaction::begin(StoreRef::Borrowed(self))
    }

    /// Begins a write transaction. With synchronous durability, it may see commits that are visible and not yet durable. It
    /// commits after them.
    pub fn write(&self) -> Result<WriteTransaction<'_>> {
        WriteTransaction::begin(StoreRef::Borrowed(self))
    }

    /// [`Store::read`] with a transaction that owns a share of the store, so that no borrow limits how long it lives.
    pub fn read_shared(self: &Arc<Self>) -> Result<ReadTransaction<'static>> {
        ReadTransaction::begin(StoreRef::Shared(Arc::clone(self)))
    }

    /// [`Store::write`] with a transaction that owns a share of the store, so that no borrow limits how long it lives.
    pub fn write_shared(self: &Arc<Self>) -> Result<WriteTransaction<'static>> {
        WriteTransaction::begin(StoreRef::Shared(Arc::clone(self)))
    }

    /// Runs a transaction and commits it, and repeats this after each conflict. After [`UPDATE_ATTEMPTS`] conflicts it runs while
    /// no other transaction commits, so it ends after a limited number of attempts.
    ///
    /// `body` may run several times, and must not begin or commit other transactions of this store. If it returns an
    /// error, the transaction is undone.
    pub fn update<T>(&self, body: impl FnMut(&mut WriteTransaction<'_>) -> Result<T>) -> Result<T> {
        self.run_borrowed(body, |error, _| is_passing(error))
    }

    /// The same as [`Store::update`], for a body with its own error type. If the body fails after its snapshot became too old,
    /// the transaction is undone and begins again, because the snapshot may be the cause of the error.
    pub fn try_update<T, E: From<Error>>(
        &self,
        body: impl FnMut(&mut WriteTransaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.run_borrowed(body, |_, snapshot| self.versions.check(snapshot).is_err())
    }

    /// [`Store::update`] with transactions that own a share of the store. `body` gets each of them, and returns it to be
    /// committed. If it returns none, the transaction is undone and does not run again. Returns whether one committed.
    pub fn update_shared(
        self: &Arc<Self>,
        body: impl FnMut(WriteTransaction<'static>) -> Result<Option<WriteTransaction<'static>>>,
    ) -> Result<bool> {
        self.run(|| self.write_shared(), body, |error, _| is_passing(error))
    }

    fn run_borrowed<'s, T, E: From<Error>>(
        &'s self,
        mut body: impl FnMut(&mut WriteTransaction<'_>) -> std::result::Result<T, E>,
        begins_again: impl Fn(&E, u64) -> bool,
    ) -> std::result::Result<T, E> {
        let mut result = None;
        let body = |mut transaction: WriteTransaction<'s>| {
            result = Some(body(&mut transaction)?);
            Ok(Some(transaction))
        };
        self.run(|| self.write(), body, begins_again)?;
        Ok(result.expect("a transaction that committed has run"))
    }

    /// Runs transactions until one commits, until `body` returns none, or until an error occurs for which `begins_again` returns
    /// false. `begins_again` also gets the snapshot of the transaction.
    fn run<'s, E: From<Error>>(
        &self,
        begin: impl Fn() -> Result<WriteTransaction<'s>>,
        mut body: impl FnMut(WriteTransaction<'s>) -> std::result::Result<Option<WriteTransaction<'s>>, E>,
        begins_again: impl Fn(&E, u64) -> bool,
    ) -> std::result::Result<bool, E> {
        for _ in 0..UPDATE_ATTEMPTS {
            let transaction = begin()?;
            let snapshot = transaction.snapshot.timestamp;
            match body(transaction) {
                Ok(Some(transaction)) => match transaction.commit() {
                    Err(error) if is_passing(&error) => {}
                    done => return done.map(|()| true).map_err(E::from),
                },
                Ok(None) => return Ok(false),
                Err(error) if begins_again(&error, snapshot) => {}
                Err(error) => return Err(error),
            }
        }
        let guard = self.lock_commit()?;
        let Some(transaction) = body(begin()?)? else { return Ok(false) };
        // It is validated all the same, because the body may have returned another transaction than it got.
        let (store, snapshot) = (&*transaction.snapshot.store, transaction.snapshot.timestamp);
        if std::ptr::eq(store, self) {
            self.commit(Instant::now(), guard, snapshot, &transaction.reads.borrow(), &transaction.writes)?;
        } else {
            drop(guard);
            transaction.commit()?;
        }
        Ok(true)
    }
}

/// Whether the next attempt of a transaction that ended with this error may succeed.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Conflict | Error::SnapshotTooOld)
}

/// The reading operations of both kinds of transactions.
macro_rules! reading {
    ($name:ident) => {
        impl $name<'_> {
            /// The records of a range, in the order of keys.
            pub fn range<'t, K: AsRef<[u8]>>(
                &'t self,
                tree: &'t NamedTree,
                range: impl RangeBounds<K>,
            ) -> Result<Records<'t>> {
                Ok(Records::new(self.cursor(tree, range)?, Direction::Up))
            }

            /// The records of a range, from the last to the first.
            pub fn range_rev<'t, K: AsRef<[u8]>>(
                &'t self,
                tree: &'t NamedTree,
                range: impl RangeBounds<K>,
            ) -> Result<Records<'t>> {
                Ok(Records::new(self.cursor(tree, range)?, Direction::Down))
            }

            /// The records whose keys begin with `prefix`, in order.
            pub fn prefix<'t>(&'t self, tree: &'t NamedTree, prefix: &[u8]) -> Result<Records<'t>> {
                self.range(tree, prefix_range(prefix))
            }

            /// A cursor over a range, before its first record.
            pub fn cursor<'t, K: AsRef<[u8]>>(
                &'t self,
                tree: &'t NamedTree,
                range: impl RangeBounds<K>,
            ) -> Result<Cursor<'t>> {
                let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
                Ok(Cursor::new(self.source(tree)?, owned(range.start_bound()), owned(range.end_bound())))
            }
        }
    };
}

reading!(ReadTransaction);
reading!(WriteTransaction);

/// The range of all keys that begin with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    // The end is the least key above all of them: the part up to the last byte that has a successor, with that byte incremented.
    let end = prefix.iter().rposition(|byte| *byte != u8::MAX).map(|last| {
        let mut end = prefix[..=last].to_vec();
        end[last] += 1;
        end
    });
    (Bound::Included(prefix.to_vec()), end.map_or(Bound::Unbounded, Bound::Excluded))
}

impl<'s> ReadTransaction<'s> {
    fn begin(store: StoreRef<'s>) -> Result<Self> {
        // With asynchronous durability, a commit is visible before it counts as durable, and a transaction that saw it may end in
        // between. A snapshot that begins after that must see the commit too.
        let sees = if store.durability == Durability::Sync { Sees::Durable } else { Sees::Visible };
        Ok(Self { snapshot: Snapshot::begin(store, sees)? })
    }
}

impl<'s> WriteTransaction<'s> {
    fn begin(store: StoreRef<'s>) -> Result<Self> {
        let snapshot = Snapshot::begin(store, Sees::Visible)?;
        Ok(Self { snapshot, reads: RefCell::default(), writes: WriteSet::default() })
    }
}

impl ReadTransaction<'_> {
    /// The timestamp of the last commit that it sees.
    pub(crate) fn timestamp(&self) -> u64 {
        self.snapshot.timestamp
    }

    /// The value of a key.
    pub fn get(&self, tree: &NamedTree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot.get(self.snapshot.store.usable(tree)?, key)
    }

    /// The values of several keys, in the order of the keys. Pages that are not in memory are read together.
    pub fn get_many<K: AsRef<[u8]>>(&self, tree: &NamedTree, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.snapshot.get_many(self.snapshot.store.usable(tree)?, keys)
    }

    /// Whether a key exists.
    pub fn contains(&self, tree: &NamedTree, key: &[u8]) -> Result<bool> {
        self.snapshot.contains(self.snapshot.store.usable(tree)?, key)
    }

    fn source<'t>(&'t self, tree: &'t NamedTree) -> Result<Source<'t>> {
        let entry = self.snapshot.store.usable(tree)?;
        Ok(Source { snapshot: &self.snapshot, entry, writes: None, reads: None })
    }
}

impl WriteTransaction<'_> {
    /// The value of a key, as this transaction has written it, or else as of its snapshot.
    pub fn get(&self, tree: &NamedTree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let entry = self.snapshot.store.usable(tree)?;
        if let Some(written) = self.writes.get(entry.id, key) {
            return Ok(written.map(<[u8]>::to_vec));
        }
        self.reads.borrow_mut().key(entry.id, key)?;
        self.snapshot.get(entry, key)
    }

    /// The same as [`WriteTransaction::get`], for several keys: their values in the order of the keys. Pages that are not in
    /// memory are read together.
    pub fn get_many<K: AsRef<[u8]>>(&self, tree: &NamedTree, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let entry = self.snapshot.store.usable(tree)?;
        for key in keys {
            if self.writes.get(entry.id, key.as_ref()).is_none() {
                self.reads.borrow_mut().key(entry.id, key.as_ref())?;
            }
        }
        let mut values = self.snapshot.get_many(entry, keys)?;
        for (key, value) in keys.iter().zip(&mut values) {
            if let Some(written) = self.writes.get(entry.id, key.as_ref()) {
                *value = written.map(<[u8]>::to_vec);
            }
        }
        Ok(values)
    }

    /// Whether a key exists.
    pub fn contains(&self, tree: &NamedTree, key: &[u8]) -> Result<bool> {
        let entry = self.snapshot.store.usable(tree)?;
        if let Some(written) = self.writes.get(entry.id, key) {
            return Ok(written.is_some());
        }
        self.reads.borrow_mut().key(entry.id, key)?;
        self.snapshot.contains(entry, key)
    }

    /// Inserts a record, or replaces its value. It reads nothing, so a put alone never conflicts.
    pub fn put(&mut self, tree: &NamedTree, key: &[u8], value: &[u8]) -> Result<()> {
        self.snapshot.store.usable(tree)?;
        check_limits(self.snapshot.store.pool.page_size(), key, value)?;
        self.writes.write(tree, key, Some(value))
    }

    /// Inserts a record unless the key exists. Returns whether it did.
    pub fn insert(&mut self, tree: &NamedTree, key: &[u8], value: &[u8]) -> Result<bool> {
        check_limits(self.snapshot.store.pool.page_size(), key, value)?;
        let is_new = !self.contains(tree, key)?;
        if is_new {
            self.writes.write(tree, key, Some(value))?;
        }
        Ok(is_new)
    }

    /// Removes a key. Returns whether it existed.
    pub fn remove(&mut self, tree: &NamedTree, key: &[u8]) -> Result<bool> {
        let found = key.len() <= LONGEST_KEY && self.contains(tree, key)?;
        if found {
            self.writes.write(tree, key, None)?;
        }
        Ok(found)
    }

    /// Removes all keys of a range. Returns their number. If a range has more keys than a transaction may write, the result is
    /// [`Error::TransactionTooLarge`].
    pub fn remove_range<K: AsRef<[u8]>>(
        &mut self,
        tree: &NamedTree,
        range: impl RangeBounds<K>,
    ) -> Result<usize> {
        let mut keys = Vec::new();
        let mut cursor = self.cursor(tree, range)?;
        while let Some((key, _)) = cursor.try_next()? {
            if keys.len() == MAX_TRANSACTION_WRITES {
                return Err(Error::TransactionTooLarge);
            }
            keys.push(key.to_vec());
        }
        drop(cursor);
        for key in &keys {
            self.writes.write(tree, key, None)?;
        }
        Ok(keys.len())
    }

    /// Commits. After [`Error::Conflict`], nothing was written, and the caller can begin the transaction again.
    pub fn commit(self) -> Result<()> {
        let begin = Instant::now();
        let store = &*self.snapshot.store;
        store.warm(&self.writes)?;
        let guard = store.lock_commit()?;
        store.commit(begin, guard, self.snapshot.timestamp, &self.reads.borrow(), &self.writes)
    }

    fn source<'t>(&'t self, tree: &'t NamedTree) -> Result<Source<'t>> {
        let entry = self.snapshot.store.usable(tree)?;
        let writes = self.writes.of(entry.id);
        Ok(Source { snapshot: &self.snapshot, entry, writes, reads: Some(&self.reads) })
    }
}
