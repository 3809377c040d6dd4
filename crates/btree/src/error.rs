//! The errors of this crate. Each message is one line and says what to do.

use bedplate_bufpool::PageId;

use crate::MAX_VALUE;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an operation failed. Unless the variant says otherwise, the tree is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the pool failed.
    #[error(transparent)]
    Pool(#[from] bedplate_bufpool::Error),
    /// The key is longer than [`max_key`](crate::max_key) of the tree's page size.
    #[error("a key of {len} bytes: keys have at most {max} with this page size")]
    KeyTooLong {
        /// Length of the key, in bytes.
        len: usize,
        /// The maximum length of a key in this tree, in bytes.
        max: usize,
    },
    /// The value is longer than [`MAX_VALUE`].
    #[error("a value of {len} bytes: values have at most {MAX_VALUE}")]
    ValueTooLong {
        /// Length of the value, in bytes.
        len: usize,
    },
    /// The root slot has no tree to open.
    #[error("the pool has no tree in root slot {slot}: create it first")]
    NoTree {
        /// The root slot.
        slot: usize,
    },
    /// The root slot is in use already.
    #[error("the pool has something in root slot {slot}: open it, or take another slot")]
    SlotInUse {
        /// The root slot.
        slot: usize,
    },
    /// A journaled tree was opened without a journal. Unlogged changes would reach storage in any order, and a crash
    /// would lose the tree.
    #[error(
        "the tree in root slot {slot} is journaled: open it with its journal (Tree::open_with), in a pool with its log"
    )]
    Journaled {
        /// The root slot.
        slot: usize,
    },
    /// The pool has no log. Such a pool writes pages before their log records are durable.
    #[error("a tree is to have a journal, and its pool has no log: open the pool with the journal's log")]
    NoLog,
    /// The pool waits for another log. Such a pool writes pages before their log records are durable.
    #[error("a tree's journal appends to another log than the pool waits for: open both with the same log")]
    AnotherLog,
    /// A bulk load was started on a tree that is not empty.
    #[error("the tree is not empty: bulk loading fills empty trees only, upsert adds to others")]
    NotEmpty,
    /// The keys of a bulk load are not in ascending order.
    #[error(
        "key {position} of the bulk load is not above the one before it: sort them, and leave out duplicates"
    )]
    NotSorted {
        /// Position of the key in the bulk load, counted from 0.
        position: u64,
    },
    /// A record passed to redo was not logged by a tree.
    #[error("log record {lsn} is none of a tree's: the log is damaged, or of another version")]
    Record {
        /// The log sequence number of the record.
        lsn: u64,
    },
    /// A page does not have the content that the tree requires.
    #[error("page {page} {what}: the tree is damaged, restore it from a backup or its log")]
    Damaged {
        /// The page.
        page: PageId,
        /// The damage of the page.
        what: String,
    },
}

/// The reason why an attempt ended without a result.
pub(crate) enum Abort {
    /// The read was inconsistent. The operation starts again.
    Restart,
    /// The operation failed. Another attempt would not help.
    Failed(Error),
}

/// The result of an attempt.
pub(crate) type Attempt<T> = std::result::Result<T, Abort>;

impl From<bedplate_bufpool::Restart> for Abort {
    #[inline(always)]
    fn from(_: bedplate_bufpool::Restart) -> Self {
        Abort::Restart
    }
}

impl From<bedplate_bufpool::Error> for Abort {
    fn from(error: bedplate_bufpool::Error) -> Self {
        Abort::Failed(error.into())
    }
}

impl From<Error> for Abort {
    fn from(error: Error) -> Self {
        Abort::Failed(error)
    }
}

/// The error for a page that does not have the required content.
#[cold]
pub(crate) fn damaged(page: PageId, what: impl Into<String>) -> Error {
    Error::Damaged { page, what: what.into() }
}
