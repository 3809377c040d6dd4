//! The operations of an ordered key-value store that the workloads need, so that the same code can measure every store.
//!
//! A [`Store`] is shared by threads; each has a [`Session`]. An operation outside a transaction is a transaction of its
//! own: with durability on, it has reached the disk when it returns.
//!
//! A store isolates transactions if [`Store::isolates`] is true. Otherwise the workload must do so: TPC-C takes locks
//! (see `tpcc::locks`), and YCSB has single operations, which every store makes atomic.

use serde::{Deserialize, Serialize};

use crate::Result;

/// A store.
pub trait Store: Sync {
    /// A thread's use of the store.
    type Session<'s>: Session
    where
        Self: 's;

    /// A session for the calling thread.
    fn session(&self) -> Result<Self::Session<'_>>;

    /// Whether transactions are serializable without help.
    fn isolates(&self) -> bool {
        false
    }

    /// Numbers of waits of threads for each other so far. `None` if the store does not count them.
    fn waits(&self) -> Option<Waits> {
        None
    }

    /// Waits for the store's background work for the writes so far, so that no measurement contains it.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

/// Numbers of waits of threads.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// For a page that another thread held or read in.
    pub page: u64,
    /// For the page allocator.
    pub allocator: u64,
    /// For the list of free frames.
    pub free_list: u64,
    /// For a frame, because none was free and no page could be evicted at once.
    pub frame: u64,
    /// For the commit mutex.
    pub commit: u64,
}

impl Waits {
    /// The waits that a pool counts.
    pub fn of_pool(pool: &bedplate_bufpool::Statistics) -> Self {
        Self {
            page: pool.page_waits,
            allocator: pool.allocator_waits,
            free_list: pool.free_list_waits,
            frame: pool.frame_waits,
            commit: 0,
        }
    }

    /// The waits since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            page: self.page - earlier.page,
            allocator: self.allocator - earlier.allocator,
            free_list: self.free_list - earlier.free_list,
            frame: self.frame - earlier.frame,
            commit: self.commit - earlier.commit,
        }
    }
}

/// Called with each key and value of a scan; `false` ends it.
pub type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> bool;

/// Called with the index and the value of each key that is looked up.
pub type Each<'e> = &'e mut dyn FnMut(usize, Option<&[u8]>);

/// Number of records that a scan will visit, if that is known, as for a query with a limit.
pub type Expected = Option<usize>;

/// The work of a transaction. The store calls it again after a conflict with another transaction.
pub type Body<'b> = &'b mut dyn FnMut(&mut dyn Transaction) -> Result<Verdict>;

/// One thread's use of a store.
pub trait Session {
    /// Puts a key's value into `value`; `false` if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Looks up several keys in the store's best way: by default, in one read transaction.
    fn get_many(&mut self, keys: &[&[u8]], each: Each<'_>) -> Result<()> {
        let mut value = Vec::new();
        let mut body = |tx: &mut dyn Transaction| {
            for (index, key) in keys.iter().enumerate() {
                let found = tx.get(key, &mut value)?;
                each(index, found.then_some(&value[..]));
            }
            Ok(Verdict::Commit)
        };
        self.transaction(Access::Read, &mut body).map(drop)
    }

    /// Inserts a key or replaces its value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Puts several keys and values in the store's best way: by default, in one transaction.
    fn put_many(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let mut body = |tx: &mut dyn Transaction| {
            pairs.iter().try_for_each(|(key, value)| tx.insert(key, value))?;
            Ok(Verdict::Commit)
        };
        self.transaction(Access::Write, &mut body).map(drop)
    }

    /// Visits keys in ascending order, from the first that is not below `from`. The visitor takes about as many as are
    /// expected.
    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()>;

    /// Runs a transaction. It takes effect as a whole if the body returns [`Verdict::Commit`]; otherwise, and on an
    /// error, it has no effect.
    fn transaction(&mut self, access: Access, body: Body<'_>) -> Result<Verdict>;
}

/// Operations within a transaction, which see its changes so far.
pub trait Transaction {
    /// Like [`Session::get`].
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Inserts a key that is not there.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Changes a key's value; `false` if there is none.
    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool>;

    /// Removes a key; `false` if it was not there.
    fn remove(&mut self, key: &[u8]) -> Result<bool>;

    /// Like [`Session::scan`].
    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()>;
}

/// The access of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and write.
    Write,
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All its changes take effect.
    Commit,
    /// None of its changes takes effect.
    RollBack,
}
