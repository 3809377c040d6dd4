//! The sides of a comparison: their stores and their memory limits.

use std::path::Path;

use bedplate_bufpool::Kind;

use super::budget::Group;
use super::peers::Setting;
use super::peers::lmdb::Lmdb;
use super::peers::redb::Redb;
use super::peers::rocksdb::RocksDb;
use super::store::Store;
use super::transactional::TransactionalStore;
use super::tree::TreeStore;
use crate::Result;

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The bare B+tree on an engine of the pool, which is neither durable nor isolated.
    Tree(Kind),
    /// The transactional store, on an engine of the pool.
    Store(Kind),
    /// LMDB, with the number of operations for which a read transaction is kept.
    Lmdb(u32),
    /// RocksDB.
    RocksDb,
    /// redb.
    Redb,
}

/// Memory that a store in a group may use besides its cache, in bytes.
const OWN_STRUCTURES: u64 = 8 << 20;

pub const ARRAY: Side = Side::Tree(Kind::Array);
pub const STOCK: Side = Side::Tree(Kind::Stock);
pub const VMCACHE: Side = Side::Tree(Kind::Vmcache);
pub const HASHTABLE: Side = Side::Tree(Kind::Hashtable);
pub const STORE: Side = Side::Store(Kind::Array);
pub const STORE_ON_STOCK: Side = Side::Store(Kind::Stock);
pub const STORE_ON_VMCACHE: Side = Side::Store(Kind::Vmcache);
pub const LMDB: Side = Side::Lmdb(1);
pub const LMDB_LONG: Side = Side::Lmdb(100);

/// A task for a store of any kind.
pub trait With {
    /// The result of the task.
    type Result;

    /// Runs the task.
    fn with<S: Store + 'static>(self, store: S) -> Self::Result;
}

impl Side {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Side::Tree(kind) => kind.name(),
            STORE => "store",
            STORE_ON_STOCK => "store on stock",
            STORE_ON_VMCACHE => "store on vmcache",
            Side::Store(_) => "store on another engine",
            Side::Lmdb(1) => "lmdb",
            Side::Lmdb(_) => "lmdb, 100 reads in a transaction",
            Side::RocksDb => "rocksdb",
            Side::Redb => "redb",
        }
    }

    /// Whether it is one of the stores that Bedplate's tree and store are compared with.
    pub fn is_peer(self) -> bool {
        !matches!(self, Side::Tree(_) | Side::Store(_))
    }

    /// Whether its commits can be durable.
    pub fn can_be_durable(self) -> bool {
        !matches!(self, Side::Tree(_))
    }

    /// Opens the store in a directory, or creates it.
    pub fn open<W: With>(self, directory: &Path, setting: Setting, with: W) -> Result<W::Result> {
        Ok(match self {
            Side::Tree(kind) => with.with(TreeStore::open(directory, setting, kind)?),
            Side::Store(kind) => with.with(TransactionalStore::open(directory, setting, kind)?),
            Side::Lmdb(reads) => with.with(Lmdb::open(directory, setting, reads)?),
            Side::RocksDb => with.with(RocksDb::open(directory, setting)?),
            Side::Redb => with.with(Redb::open(directory, setting)?),
        })
    }

    /// Converts an answer; `None` is that of a side that has failed before. A peer that fails is left out, with the
    /// reason, because the kernel may kill a process with so little memory. Bedplate's sides must not fail.
    pub fn tolerate<T>(self, answer: Option<Result<T>>) -> Result<std::result::Result<T, String>> {
        match answer {
            Some(Ok(answer)) => Ok(Ok(answer)),
            Some(Err(error)) if self.is_peer() => Ok(Err(error.to_string())),
            Some(Err(error)) => Err(error),
            None => Ok(Err("it ended before".to_owned())),
        }
    }

    /// The group that limits its memory, if it uses the page cache; or the reason why that is not possible.
    pub fn limit(self, budget: u64) -> std::result::Result<Option<(Group, u64)>, String> {
        match self {
            Side::Lmdb(_) | Side::Redb => {
                Group::create(&self.name()[..4]).map(|group| Some((group, budget + OWN_STRUCTURES)))
            }
            Side::Tree(_) | Side::Store(_) | Side::RocksDb => Ok(None),
        }
    }
}
