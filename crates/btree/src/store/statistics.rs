//! Counts of a store.

use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_bufpool::PageSize;

use super::Store;
use super::error::Result;
use super::trees::NamedTree;

#[derive(Default)]
pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub conflicts: AtomicU64,
    pub commit_waits: AtomicU64,
    pub checkpoints: AtomicU64,
    pub failed_checkpoints: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts of a store since it was opened, and the memory that versions use now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Transactions that wrote something and committed.
    pub commits: u64,
    /// Commits that failed with [`Error::Conflict`](super::Error::Conflict).
    pub conflicts: u64,
    /// Number of times that a commit or a checkpoint waited for the commit mutex.
    pub commit_waits: u64,
    /// Bytes of superseded values that are kept for snapshots.
    pub version_bytes: u64,
    /// Bytes that were appended to the log since the log was created.
    pub log_bytes: u64,
    /// Checkpoints, including the one at opening.
    pub checkpoints: u64,
    /// Checkpoints that a commit began and that failed. The commits are durable, and the log keeps growing until a checkpoint
    /// succeeds: [`Store::checkpoint`] returns the reason.
    pub failed_checkpoints: u64,
}

/// The space of a store's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Space {
    /// Bytes of all pages.
    pub bytes: u64,
    /// Bytes of free pages among them, which later commits use.
    pub free_bytes: u64,
}

impl Store {
    /// The size of the pages, which was chosen when the store was created.
    pub fn page_size(&self) -> PageSize {
        self.pool.page_size()
    }

    /// The maximum length of a key, in bytes: [`max_key`](crate::max_key) of the page size.
    pub fn max_key(&self) -> usize {
        crate::max_key(self.page_size())
    }

    /// The space of the pages.
    pub fn space(&self) -> Space {
        let pages = self.pool.pages();
        let in_use = self.pool.pages_in_use();
        let page = self.pool.page_size().bytes() as u64;
        Space { bytes: pages.end * page, free_bytes: (pages.end - pages.start).saturating_sub(in_use) * page }
    }

    /// Approximate number of records of a tree now, from samples. It takes a few hundred page reads, whatever the size of the
    /// tree.
    pub fn estimate_len(&self, tree: &NamedTree) -> Result<u64> {
        Ok(self.handle(self.usable(tree)?).estimate()?)
    }

    /// Counts.
    pub fn statistics(&self) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            commits: load(&self.counters.commits),
            conflicts: load(&self.counters.conflicts),
            commit_waits: load(&self.counters.commit_waits),
            version_bytes: self.versions.bytes() as u64,
            log_bytes: self.log.end(),
            checkpoints: load(&self.counters.checkpoints),
            failed_checkpoints: load(&self.counters.failed_checkpoints),
        }
    }

    /// The engine of the buffer pool below the store.
    pub fn engine(&self) -> bedplate_bufpool::Kind {
        self.pool.kind()
    }

    /// Counts of the buffer pool below the store.
    pub fn pool_statistics(&self) -> bedplate_bufpool::Statistics {
        self.pool.statistics()
    }
}
