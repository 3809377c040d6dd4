//! The sides of a comparison: which store, how its memory is limited.

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
    /// LMDB, a read transaction being kept for so many operations.
    Lmdb(u32),
    /// RocksDB.
    RocksDb,
    /// redb.
    Redb,
}

/// What a store that is limited by a group may have besides its cache.
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

/// What is done with a store, whichever it is.
pub trait With {
    /// What comes of it.
    type Result;

    /// Does it.
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

    /// Opens what is in a directory, or makes it.
    pub fn open<W: With>(self, directory: &Path, setting: Setting, with: W) -> Result<W::Result> {
        Ok(match self {
            Side::Tree(kind) => with.with(TreeStore::open(directory, setting, kind)?),
            Side::Store(kind) => with.with(TransactionalStore::open(directory, setting, kind)?),
            Side::Lmdb(reads) => with.with(Lmdb::open(directory, setting, reads)?),
            Side::RocksDb => with.with(RocksDb::open(directory, setting)?),
            Side::Redb => with.with(Redb::open(directory, setting)?),
        })
    }

    /// What to make of an answer, none being that of a side that could not go on before: a peer that fails (within so
    /// little memory, a kernel may end its process) is left out, with the reason; Bedplate's sides must not fail.
    pub fn tolerate<T>(self, answer: Option<Result<T>>) -> Result<std::result::Result<T, String>> {
        match answer {
            Some(Ok(answer)) => Ok(Ok(answer)),
            Some(Err(error)) if self.is_peer() => Ok(Err(error.to_string())),
            Some(Err(error)) => Err(error),
            None => Ok(Err("it ended before".to_owned())),
        }
    }

    /// The group that limits its memory, for those that use the page cache; or why that is not possible here.
    pub fn limit(self, budget: u64) -> std::result::Result<Option<(Group, u64)>, String> {
        match self {
            Side::Lmdb(_) | Side::Redb => {
                Group::create(&self.name()[..4]).map(|group| Some((group, budget + OWN_STRUCTURES)))
            }
            Side::Tree(_) | Side::Store(_) | Side::RocksDb => Ok(None),
        }
    }
}
