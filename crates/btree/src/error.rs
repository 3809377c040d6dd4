//! What can go wrong, in one line each that says what to do.

use bedplate_bufpool::PageId;

use crate::{MAX_KEY, MAX_VALUE};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done. Unless it says otherwise, the tree is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool could not do something.
    #[error(transparent)]
    Pool(#[from] bedplate_bufpool::Error),
    /// Keys have a limit.
    #[error("a key of {len} bytes: keys have at most {MAX_KEY}")]
    KeyTooLong {
        /// How long it was.
        len: usize,
    },
    /// Values have a limit.
    #[error("a value of {len} bytes: values have at most {MAX_VALUE}")]
    ValueTooLong {
        /// How long it was.
        len: usize,
    },
    /// There is no tree to open.
    #[error("the pool has no tree in root slot {slot}: create it first")]
    NoTree {
        /// Which slot.
        slot: usize,
    },
    /// There is one already.
    #[error("the pool has something in root slot {slot}: open it, or take another slot")]
    SlotInUse {
        /// Which slot.
        slot: usize,
    },
    /// Bulk loading begins with an empty tree.
    #[error("the tree is not empty: bulk loading fills empty trees only, upsert adds to others")]
    NotEmpty,
    /// Bulk loading takes rising keys.
    #[error(
        "key {position} of the bulk load is not above the one before it: sort them, and leave out duplicates"
    )]
    NotSorted {
        /// Which key, counted from 0.
        position: u64,
    },
    /// What is to be repeated is nothing that a tree has logged.
    #[error("log record {lsn} is none of a tree's: the log is damaged, or of another version")]
    Record {
        /// Its number.
        lsn: u64,
    },
    /// A page is not what the tree needs it to be.
    #[error("page {page} {what}: the tree is damaged, restore it from a backup or its log")]
    Damaged {
        /// Which.
        page: PageId,
        /// What is wrong with it.
        what: String,
    },
}

/// Why an attempt ended without a result.
pub(crate) enum Stop {
    /// What was read does not count: begin again.
    Restart,
    /// Trying again would not help.
    Failed(Error),
}

/// The result of an attempt.
pub(crate) type Attempt<T> = std::result::Result<T, Stop>;

impl From<bedplate_bufpool::Restart> for Stop {
    #[inline(always)]
    fn from(_: bedplate_bufpool::Restart) -> Self {
        Stop::Restart
    }
}

impl From<bedplate_bufpool::Error> for Stop {
    fn from(error: bedplate_bufpool::Error) -> Self {
        Stop::Failed(error.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

/// A page that is not what it should be.
#[cold]
pub(crate) fn damaged(page: PageId, what: impl Into<String>) -> Error {
    Error::Damaged { page, what: what.into() }
}
