//! What users see of a tree.

use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;

use bedplate_bufpool::{PageId, Pool};

use crate::ahead::Density;
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::journal::{Journal, Logged};
use crate::latch::Readable;
use crate::node::edit::Node;
use crate::read::Room;
use crate::scan::{Direction, Range};
use crate::shape::Shape;
use crate::write::Existing;

/// A B+tree in a pool: a sorted map from bytes to bytes, used by as many threads as like, through `&self`.
///
/// `P` is how it has its pool: `&Pool`, or `Arc<Pool>` for a tree that outlives where it was made. Several trees share a
/// pool, each with a root slot of its own.
///
/// Keys have up to [`MAX_KEY`](crate::MAX_KEY) bytes and are ordered as byte strings; for numbers, that is their order if
/// they are written big-endian. Values have up to [`MAX_VALUE`](crate::MAX_VALUE) bytes. Every operation is atomic by
/// itself. Errors are those of the pool, of limits, or of damage; the tree can be used after them.
#[derive(Clone)]
pub struct Tree<P> {
    pool: P,
    root: PageId,
    slot: usize,
    journal: Option<Arc<dyn Journal>>,
    density: Arc<Density>,
}

impl<P: Deref<Target = Pool>> Tree<P> {
    /// Makes an empty tree, and notes it in the pool's root slot `slot`, which nobody else uses meanwhile.
    ///
    /// Its existence is durable with the pool's next sync, as everything is.
    pub fn create(pool: P, slot: usize) -> Result<Self> {
        Self::create_logged(pool, slot, None)
    }

    /// The same of a tree that logs its changes, from this one on. The root slot is not logged: sync the pool before what
    /// is put into the tree must survive a crash.
    pub fn create_with(pool: P, slot: usize, journal: Arc<dyn Journal>) -> Result<Self> {
        Self::create_logged(pool, slot, Some(journal))
    }

    fn create_logged(pool: P, slot: usize, journal: Option<Arc<dyn Journal>>) -> Result<Self> {
        if pool.root(slot) != 0 {
            return Err(Error::SlotInUse { slot });
        }
        let mut page = pool.allocate()?;
        Node::create(&mut page, 0, None, None, 0);
        let root = page.page();
        Logged(journal.as_deref()).images([&mut page]);
        drop(page);
        pool.set_root(slot, root.0);
        Ok(Self { pool, root, slot, journal, density: Arc::default() })
    }

    /// Opens the tree of a root slot.
    pub fn open(pool: P, slot: usize) -> Result<Self> {
        let root = PageId(pool.root(slot));
        if root.is_none() {
            return Err(Error::NoTree { slot });
        }
        let node = pool.pin_shared(root)?;
        let page = node.view();
        if !page.is_leaf() && !page.is_inner() {
            return Err(crate::error::damaged(root, "is no node"));
        }
        drop(node);
        Ok(Self { pool, root, slot, journal: None, density: Arc::default() })
    }

    /// Opens the tree of a root slot, and logs its changes. After a crash, [`redo`](crate::redo) comes first.
    pub fn open_with(pool: P, slot: usize, journal: Arc<dyn Journal>) -> Result<Self> {
        Ok(Self { journal: Some(journal), ..Self::open(pool, slot)? })
    }

    /// Opens the tree of a root slot, or makes one there.
    pub fn open_or_create(pool: P, slot: usize) -> Result<Self> {
        if pool.root(slot) == 0 { Self::create(pool, slot) } else { Self::open(pool, slot) }
    }

    /// The pool it is in.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    #[inline(always)]
    fn handle(&self) -> Handle<'_> {
        Handle { pool: &self.pool, root: self.root, log: Logged(self.journal.as_deref()) }
    }

    /// Shows the value of `key` to `read`; returns what that returns, or `None` if there is no such key.
    ///
    /// Allocates nothing unless the value is longer than a leaf takes, and writes to no shared memory. `read` sees a copy
    /// and holds nothing up, whatever it does.
    #[inline]
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut room = Room::new();
        Ok(if self.handle().get(key, &mut room)? { Some(read(room.value())) } else { None })
    }

    /// Copies the value of `key` into `value`, which is overwritten; says whether there is one.
    #[inline]
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.get(key, |found| value.extend_from_slice(found))?;
        Ok(found.is_some())
    }

    /// Whether there is such a key.
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        self.handle().contains(key)
    }

    /// Inserts a record, unless the key is there already, whose value is then left as it is. Says whether it did.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(!self.handle().put(key, value, Existing::Keep)?)
    }

    /// Inserts a record, or replaces the value if the key is there already. Says whether it was.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.handle().put(key, value, Existing::Replace)
    }

    /// Replaces the value of `key` by what `change` puts into the vector, which is empty at first, when it sees the old one.
    /// Says whether the key is there.
    ///
    /// Nobody else reads or changes records nearby while `change` runs, so it should be quick, and must not use the tree.
    /// It is called again when the new value did not fit and room was made for it.
    pub fn update(&self, key: &[u8], change: impl FnMut(&[u8], &mut Vec<u8>)) -> Result<bool> {
        self.handle().update(key, change)
    }

    /// Lets `change` overwrite the value of `key` where it is, with as many bytes; returns what that returns, or `None` if
    /// there is no such key. What is true of [`Tree::update`]'s is true of this `change`, but that it is called once.
    pub fn update_in_place<R>(&self, key: &[u8], change: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        self.handle().update_in_place(key, change)
    }

    /// Removes a key; says whether it was there.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.handle().remove(key)
    }

    /// The records of a range of keys, in their order: `tree.range(low..high)`, of anything that is bytes.
    ///
    /// What is in the tree during the whole scan is returned exactly once; what others insert, change or remove meanwhile,
    /// as it was or as it is.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range<'_> {
        self.scan(Direction::Up, range.start_bound(), range.end_bound())
    }

    /// The same from the last to the first.
    pub fn range_rev<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range<'_> {
        self.scan(Direction::Down, range.start_bound(), range.end_bound())
    }

    /// All records, in the order of their keys.
    pub fn iter(&self) -> Range<'_> {
        self.range::<&[u8]>(..)
    }

    fn scan<K: AsRef<[u8]>>(&self, direction: Direction, low: Bound<&K>, high: Bound<&K>) -> Range<'_> {
        Range::new(self.handle(), &self.density, direction, low.map(AsRef::as_ref), high.map(AsRef::as_ref))
    }

    /// Fills an empty tree with records in rising order of their keys, without duplicates, and returns how many. Every page
    /// is written once, and is full.
    ///
    /// Until it is done the tree is empty to everybody; after an error it still is.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        self.handle().bulk_load(records.into_iter())
    }

    /// About how many records there are, by samples: it takes a few hundred page reads, however large the tree is. Exact as
    /// long as the root is a leaf.
    pub fn estimate_len(&self) -> Result<u64> {
        self.handle().estimate()
    }

    /// Reads the whole tree, verifies everything that must be true of it, and returns what it consists of. Others may use
    /// the tree meanwhile, but will wait.
    pub fn check(&self) -> Result<Shape> {
        self.handle().walk(None)
    }

    /// Like [`Tree::check`], and shows each page: after a crash, to tell the pool which pages are in use. Nobody changes the
    /// tree meanwhile.
    pub fn pages(&self, mut visit: impl FnMut(PageId)) -> Result<Shape> {
        self.handle().walk(Some(&mut visit))
    }

    /// Gives all pages back, and the root slot. Nobody else uses the tree any more.
    pub fn destroy(self) -> Result<()> {
        self.pool.set_root(self.slot, 0);
        self.handle().free_all()
    }
}
