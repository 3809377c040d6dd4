//! The public interface of a tree.

use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;

use bedplate_bufpool::{PageId, Pool};

use crate::descend::Handle;
use crate::error::{Error, Result};
use crate::journal::{Journal, Logged};
use crate::latch::Readable;
use crate::node::edit::Node;
use crate::read::Room;
use crate::read_ahead::Density;
use crate::scan::{Direction, Range};
use crate::verify::Shape;
use crate::write::Existing;

/// A root slot contains the page number of the root, and this bit if the tree is journaled. Both become durable at
/// once. A tree of an older version gets the bit when it is first opened with a journal. Older versions of this crate
/// refuse a tree with this bit, because no page has such a number.
const JOURNALED: u64 = 1 << 63;

/// A B+tree in a pool: a sorted map from bytes to bytes. Any number of threads can use it at once, through `&self`.
///
/// `P` is the tree's handle of its pool: `&Pool`, or `Arc<Pool>` for a tree that outlives the scope that made it.
/// Several trees can share a pool. Each tree has its own root slot.
///
/// Keys have up to [`Tree::max_key`] bytes, which depends on the pool's page size. They are ordered as byte strings. Numbers have
/// their usual order if they are written big-endian. Values have up to [`MAX_VALUE`](crate::MAX_VALUE) bytes. Every operation is atomic by
/// itself. An operation fails if the pool fails, if a limit is exceeded, or if the tree is damaged. The tree can be
/// used after an error.
#[derive(Clone)]
pub struct Tree<P> {
    pool: P,
    root: PageId,
    slot: usize,
    journal: Option<Arc<dyn Journal>>,
    density: Arc<Density>,
}

impl<P: Deref<Target = Pool>> Tree<P> {
    /// Creates an empty tree and stores its root in the pool's root slot `slot`. No other thread may use the slot
    /// meanwhile.
    ///
    /// The new tree is durable after the pool's next sync, like any change of the pool.
    pub fn create(pool: P, slot: usize) -> Result<Self> {
        Self::create_logged(pool, slot, None)
    }

    /// Creates an empty tree that logs its changes from the first one on. The root slot itself is not logged. If log
    /// records about the tree must survive a crash, the caller syncs the pool first.
    ///
    /// The tree remembers that it is journaled, so it can only be opened with a journal. Fails if the pool has no log,
    /// or if the pool waits for a log that the journal does not append to ([`Journal::appends_to`]).
    pub fn create_with(pool: P, slot: usize, journal: Arc<dyn Journal>) -> Result<Self> {
        verify_log(&pool, &*journal)?;
        Self::create_logged(pool, slot, Some(journal))
    }

    fn create_logged(pool: P, slot: usize, journal: Option<Arc<dyn Journal>>) -> Result<Self> {
        if pool.root(slot) != 0 {
            return Err(Error::SlotInUse { slot });
        }
        let root = new_root(&pool, Logged(journal.as_deref()))?;
        pool.set_root(slot, if journal.is_some() { root.0 | JOURNALED } else { root.0 });
        Ok(Self { pool, root, slot, journal, density: Arc::default() })
    }

    /// Opens the tree of a root slot. Fails for a journaled tree, because its changes would not be logged.
    pub fn open(pool: P, slot: usize) -> Result<Self> {
        if pool.root(slot) & JOURNALED != 0 {
            return Err(Error::Journaled { slot });
        }
        Self::open_logged(pool, slot, None)
    }

    fn open_logged(pool: P, slot: usize, journal: Option<Arc<dyn Journal>>) -> Result<Self> {
        let root = PageId(pool.root(slot) & !JOURNALED);
        if root.is_none() {
            return Err(Error::NoTree { slot });
        }
        let node = pool.pin_shared(root)?;
        let page = node.view();
        if !page.is_leaf() && !page.is_inner() {
            return Err(crate::error::damaged(root, "is no node"));
        }
        drop(node);
        Ok(Self { pool, root, slot, journal, density: Arc::default() })
    }

    /// Opens the tree of a root slot and logs its changes. After a crash, the caller runs [`redo`](crate::redo) first.
    /// Fails if the pool has no log, or if the pool waits for a log that the journal does not append to
    /// ([`Journal::appends_to`]).
    ///
    /// A tree that was never journaled becomes journaled. This takes a checkpoint ([`Pool::sync`]): unlogged changes
    /// must be durable before the first logged change. The caller must hold no page exclusively. No thread may use the
    /// tree without a journal during the call or after it.
    pub fn open_with(pool: P, slot: usize, journal: Arc<dyn Journal>) -> Result<Self> {
        verify_log(&pool, &*journal)?;
        let tree = Self::open_logged(pool, slot, Some(journal))?;
        let root = tree.pool.root(slot);
        if root & JOURNALED == 0 {
            tree.pool.set_root(slot, root | JOURNALED);
            if let Err(error) = tree.pool.sync() {
                // Storage may have the mark already. In that case the tree cannot be opened without a journal, but no
                // data is lost.
                tree.pool.set_root(slot, root);
                return Err(error.into());
            }
        }
        Ok(tree)
    }

    /// Opens the tree of a root slot, or creates one there, without a journal.
    pub fn open_or_create(pool: P, slot: usize) -> Result<Self> {
        if pool.root(slot) == 0 { Self::create(pool, slot) } else { Self::open(pool, slot) }
    }

    /// The pool that contains the tree.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The maximum length of a key, in bytes: [`max_key`](crate::max_key) of the pool's page size.
    pub fn max_key(&self) -> usize {
        crate::max_key(self.pool.page_size())
    }

    #[inline(always)]
    pub(crate) fn handle(&self) -> Handle<'_> {
        Handle { pool: &self.pool, root: self.root, log: Logged(self.journal.as_deref()) }
    }

    /// Calls `read` with the value of `key` and returns its result. Returns `None` if the key is not in the tree.
    ///
    /// Allocates only if the value is too long for a leaf of 4 KiB. Writes to no shared memory. `read` gets a copy, so it may
    /// take any time: it blocks no other thread.
    #[inline]
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut room = Room::new();
        Ok(if self.handle().get(key, &mut room)? { Some(read(room.value())) } else { None })
    }

    /// Copies the value of `key` into `value`, which is cleared first. Returns whether the key is in the tree.
    #[inline]
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.get(key, |found| value.extend_from_slice(found))?;
        Ok(found.is_some())
    }

    /// Looks several keys up. Calls `read` with each key's index in `keys` and its value, or `None`, in no particular order.
    ///
    /// Pages that are not in memory are read together, with about one request for each level of the tree and not one for each
    /// key. Each lookup is atomic by itself. Keys whose pages are all in memory cost a little more than with [`Tree::get`].
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K], read: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.handle().get_many(keys, read)
    }

    /// Reads the leaves of several keys, and the pages on the paths to them, into memory while there are frames for them. Later
    /// operations on these keys then wait for no storage. A program calls this before it changes several records.
    ///
    /// Pages that are not in memory are read together, as in [`Tree::get_many`]. Keys need not be in the tree. Another thread may
    /// evict the pages at any time, so this only saves time.
    pub fn warm<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<()> {
        self.handle().warm(keys)
    }

    /// Returns whether `key` is in the tree.
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        self.handle().contains(key)
    }

    /// Inserts a record. If the key is in the tree already, its value stays as it is. Returns whether the record was
    /// inserted.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(!self.handle().put(key, value, Existing::Keep)?)
    }

    /// Inserts a record, or replaces the value if the key is in the tree already. Returns whether the key was in the
    /// tree.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.handle().put(key, value, Existing::Replace)
    }

    /// Replaces the value of `key`. `change` gets the old value and writes the new value into the vector, which is
    /// empty at first. Returns whether the key is in the tree.
    ///
    /// No other thread reads or changes records of the same leaf while `change` runs. So `change` should be quick, and
    /// it must not use the tree. It runs again if the new value did not fit and the tree has made room for it.
    pub fn update(&self, key: &[u8], change: impl FnMut(&[u8], &mut Vec<u8>)) -> Result<bool> {
        self.handle().update(key, change)
    }

    /// Calls `change` with the value of `key`, which it may overwrite but not resize. Returns the result of `change`,
    /// or `None` if the key is not in the tree. The rules for `change` of [`Tree::update`] hold here too, except that
    /// it runs at most once.
    pub fn update_in_place<R>(&self, key: &[u8], change: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        self.handle().update_in_place(key, change)
    }

    /// Removes a key. Returns whether it was in the tree.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.handle().remove(key)
    }

    /// Iterates over the records of a range of keys, in ascending order: `tree.range(low..high)`. Bounds can be of any
    /// type that is `AsRef<[u8]>`.
    ///
    /// A record that is in the tree during the whole scan is returned exactly once. A record that other threads insert,
    /// change or remove meanwhile is returned in its old or its new state.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range<'_> {
        self.scan(Direction::Up, range.start_bound(), range.end_bound())
    }

    /// Like [`Tree::range`], in descending order.
    pub fn range_rev<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range<'_> {
        self.scan(Direction::Down, range.start_bound(), range.end_bound())
    }

    /// Iterates over all records, in ascending order of their keys.
    pub fn iter(&self) -> Range<'_> {
        self.range::<&[u8]>(..)
    }

    fn scan<K: AsRef<[u8]>>(&self, direction: Direction, low: Bound<&K>, high: Bound<&K>) -> Range<'_> {
        Range::new(self.handle(), &self.density, direction, low.map(AsRef::as_ref), high.map(AsRef::as_ref))
    }

    /// Fills an empty tree with records and returns their number. The records must be in ascending order of their keys,
    /// without duplicates. Every page is written once and filled completely.
    ///
    /// Other threads see an empty tree until the load completes. After an error the tree is still empty.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        self.handle().bulk_load(records.into_iter())
    }

    /// Estimates the number of records from samples. This reads a few hundred pages, independent of the size of the
    /// tree. The result is exact if the root is a leaf.
    pub fn estimate_len(&self) -> Result<u64> {
        self.handle().estimate()
    }

    /// Reads and verifies the whole tree, and returns its shape. Other threads may use and change the tree meanwhile.
    /// They do not wait for storage because of the check.
    ///
    /// Every visited node was sound, and matched its parent, at one moment of the run. Nodes are visited in key order
    /// without a gap. A record that is in the tree during the whole run is counted exactly once. If other threads
    /// change the tree, the returned numbers do not belong to a single moment.
    pub fn check(&self) -> Result<Shape> {
        self.handle().check()
    }

    /// Verifies a tree that no thread changes, and also that no page is in it twice. Calls `visit` for each page. After
    /// a crash, the caller uses this to tell the pool which pages are in use.
    pub fn pages(&self, mut visit: impl FnMut(PageId)) -> Result<Shape> {
        self.handle().walk(&mut visit)
    }

    /// Frees all pages of the tree, and its root slot. No other thread may use the tree during the call or after it.
    pub fn destroy(self) -> Result<()> {
        self.pool.set_root(self.slot, 0);
        self.handle().free_all()
    }
}

/// Fails if the pool does not wait for the records of this journal.
fn verify_log(pool: &Pool, journal: &dyn Journal) -> Result<()> {
    let log = pool.log().ok_or(Error::NoLog)?;
    if journal.appends_to(log) { Ok(()) } else { Err(Error::AnotherLog) }
}

/// Allocates a page and makes it the root of an empty tree.
pub(crate) fn new_root(pool: &Pool, log: Logged<'_>) -> Result<PageId> {
    let mut page = pool.allocate()?;
    Node::create(&mut page, 0, None, None, 0);
    log.images([&mut page]);
    Ok(page.page())
}
