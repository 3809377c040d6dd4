//! A transactional key-value store: named B+trees with serializable transactions, snapshots, and a write-ahead log.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use bedplate_btree::store::Store;
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path();
//! let store = Store::builder(path).memory(16 << 20).capacity(1 << 30).open()?;
//! let accounts = store.create_tree("accounts")?;
//! store.update(|transaction| {
//!     transaction.put(&accounts, b"alice", b"10")?;
//!     transaction.put(&accounts, b"bob", b"20")
//! })?;
//! let snapshot = store.read()?;
//! assert_eq!(snapshot.get(&accounts, b"alice")?.as_deref(), Some(&b"10"[..]));
//! for record in snapshot.range(&accounts, "a".."b")? {
//!     let (key, value) = record?;
//!     println!("{key:?}: {value:?}");
//! }
//! drop(snapshot);
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! A directory has the file `pages` of the buffer pool, segments `log.NNNNNNNN` of the log, and a `lock` file.
//!
//! - Reading: `clock` has timestamps, `versions` the values that snapshots need (and the proof of the read rule), `cursor` merges
//!   them with the trees, `transaction` is the interface.
//! - Writing: a transaction keeps its writes in a `write_set` and the keys and ranges that it read in a `read_set`; `commit` validates
//!   and applies.
//! - Durability: `log` has group commit, `record` the format, `replay` reads it, `disk` has its files; `checkpoint` bounds it;
//!   `recovery` has the proof that redo of images and commits is enough.
//! - Maintenance: `verify` finds damage, on an `overlay` that leaves the files as they are. `backup` copies a store in use to a
//!   `site`, where a new store is invisible until it is complete. `dump` writes the `dump_format`, `load` reads it, and `build`
//!   makes trees from sorted records. `compact` rebuilds the pages of a store.
//!
//! - Observation: `statistics` has counts, `latency` has durations.
//!
//! **Order of locks**: checkpoint mutex, commit mutex, `trees`, `promised_pages`, latches of pages, locks of the pool, then the
//! leaves: the locks of clock, versions, log and durations.

mod backup;
mod build;
mod builder;
mod checkpoint;
mod clock;
mod commit;
mod compact;
mod cursor;
mod disk;
mod dump;
mod dump_format;
mod error;
mod latency;
mod limits;
mod load;
mod log;
mod overlay;
mod progress;
mod read_set;
mod record;
mod recovery;
mod replay;
mod site;
mod statistics;
#[cfg(test)]
mod tests;
mod transaction;
mod trees;
mod verify;
mod versions;
mod write_set;

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use bedplate_bufpool::Pool;

use self::clock::Clock;
use self::latency::Recorder;
use self::log::Log;
use self::record::Checkpoint;
use self::statistics::Counters;
use self::trees::Trees;
use self::versions::Versions;
use crate::Tree;

pub use backup::Backup;
pub use builder::{Builder, Durability};
pub use compact::Compaction;
pub use cursor::{Cursor, Records};
pub use dump::Dump;
pub use error::{Error, Result};
pub use latency::{Latencies, Latency};
pub use limits::{
    DEFAULT_CHECKPOINT_BYTES, DEFAULT_VERSION_BYTES, LATENCY_MAX, MAX_DAMAGES, MAX_READ_BYTES,
    MAX_TRANSACTION_BYTES, MAX_TRANSACTION_WRITES, MAX_TREE_NAME, MAX_TREES, UPDATE_ATTEMPTS,
};
pub use load::{Load, LoadPolicy};
pub use progress::Progress;
pub use statistics::{Space, Statistics};
pub use transaction::{ReadTransaction, WriteTransaction, prefix_range};
pub use trees::NamedTree;
pub use verify::{Damage, LogSummary, TreeSummary, Verification};

/// Reads arbitrary bytes as a dump.
#[cfg(fuzzing)]
pub fn arbitrary_dump(input: &[u8]) {
    if let Ok(written) = dump_format::read_and_write(input) {
        // The reader accepts blocks of any size. The writer has one size, so its output is written again without a change.
        assert_eq!(dump_format::read_and_write(&written).expect("it was written"), written);
    }
}

/// A transactional key-value store in a directory. Threads share it by reference.
///
/// A drop without [`Store::close`] is allowed. The next opening then recovers the store from its log, which takes longer.
pub struct Store {
    /// Distinguishes the stores of this process.
    number: u64,
    pool: Arc<Pool>,
    log: Arc<Log>,
    catalog: Tree<Arc<Pool>>,
    trees: RwLock<Trees>,
    /// Serializes commits, from validation until all writes are in the trees.
    commit: Mutex<()>,
    clock: Clock,
    versions: Versions,
    /// Number of pages that commits and loads have reserved.
    promised_pages: Mutex<u64>,
    durability: Durability,
    /// The point from which recovery would start. The mutex is held during a checkpoint.
    last_checkpoint: Mutex<Checkpoint>,
    checkpoint_bytes: u64,
    /// Whether a commit was interrupted, or the log failed.
    poisoned: AtomicBool,
    counters: Counters,
    commit_latency: Recorder,
    checkpoint_latency: Recorder,
    /// Is dropped last, because another store may use the directory from then on.
    _lock: File,
}

impl Store {
    /// Whether the store can be used.
    fn check(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) || self.log.has_failed() {
            return Err(Error::Poisoned);
        }
        Ok(())
    }

    /// Makes all visible commits durable. This is useful with asynchronous durability.
    pub fn sync(&self) -> Result<()> {
        self.check()?;
        self.log.make_durable(self.log.end()).map_err(Error::Log)
    }

    /// Makes everything durable and closes the store, so that the next opening has nothing to recover.
    pub fn close(self) -> Result<()> {
        self.checkpoint()?;
        self.pool.close()?;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // In a forked child, another thread of the parent may have held a lock, which no thread releases.
        if self.log.is_inherited() {
            return;
        }
        // A clean exit would lose asynchronous commits without this. An error cannot be reported here; `sync` reports it.
        let _ = self.log.make_durable(self.log.end());
    }
}
