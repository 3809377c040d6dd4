//! The errors of a store.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::is_full;
use super::limits::{
    MAX_READ_BYTES, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_WRITES, MAX_TREE_NAME, MAX_TREES,
};

/// Results of a store.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an operation of a store failed. Unless the error says otherwise, the operation changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tree or its pool failed.
    #[error(transparent)]
    Tree(#[from] crate::Error),
    /// The directory of the store could not be opened or created.
    #[error("the store in {} cannot be opened: {what}: {source}", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The action that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A file of the store could not be used.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The log could not be written. Whether the transaction has committed is known only after the store is opened again.
    #[error(
        "the log could not be written: {0}; open the store again to know whether the transaction has committed"
    )]
    Log(#[source] io::Error),
    /// A commit failed after its record was appended. Recovery completes it when the store is opened again, unless the record
    /// had not become durable.
    #[error("a commit was interrupted: {0}; drop the store and open it again, which completes the commit")]
    Interrupted(#[source] crate::Error),
    /// There is no space for the log records of a commit. The transaction is undone, and the store can be used.
    #[error("there is no space for the log: {0}; the transaction is undone: make space, and begin it again")]
    NoSpace(#[source] io::Error),
    /// An earlier error left the store in a state that only recovery completes.
    #[error("an earlier error interrupted a commit: drop the store and open it again, which recovers it")]
    Poisoned,
    /// There is no store, and the caller did not allow to create one.
    #[error("there is no store in {}: create it first", .0.display())]
    NoStore(PathBuf),
    /// A new store can only be made in an empty or absent directory.
    #[error("{} is not an empty directory: choose one that does not exist", .0.display())]
    NotEmpty(PathBuf),
    /// A dump was changed or is incomplete.
    #[error("the dump is damaged or incomplete: at byte {byte} it {what}; nothing of it was loaded")]
    Dump {
        /// Number of its bytes that were read.
        byte: u64,
        /// The damage.
        what: &'static str,
    },
    /// A backup, a load or a compaction that was making a store here was interrupted.
    #[error("the store in {} is incomplete, because what made it was interrupted: remove it, and make it again", .0.display())]
    Incomplete(PathBuf),
    /// Another process, or another store of this process, has the directory open, and has not closed it within a second.
    #[error("the store in {} is open already: close it first", .0.display())]
    InUse(PathBuf),
    /// The log was changed or is incomplete.
    #[error("segment {segment} of the log {what}: restore the store from a backup")]
    LogDamaged {
        /// The segment.
        segment: u64,
        /// The damage.
        what: &'static str,
    },
    /// The pages of the store are missing, or belong to another store.
    #[error("{0}: restore the store from a backup")]
    Missing(&'static str),
    /// Another transaction changed a record or a range that this one had read. Start again, as
    /// [`Store::update`](super::Store::update) does.
    #[error("another transaction changed what this one read: begin the transaction again")]
    Conflict,
    /// The values that the snapshot needs were dropped to keep within the limit of versions.
    #[error("the snapshot is too old, its values were dropped: begin again, or allow more bytes of versions")]
    SnapshotTooOld,
    /// The transaction exceeds a limit.
    #[error(
        "the transaction is too large: at most {MAX_TRANSACTION_WRITES} writes, {MAX_TRANSACTION_BYTES} bytes written \
         and replaced, {MAX_READ_BYTES} bytes of keys read"
    )]
    TransactionTooLarge,
    /// There is no tree with this name, or it was dropped.
    #[error("there is no tree {0:?}")]
    NoSuchTree(String),
    /// A tree with this name exists already.
    #[error("there is a tree {0:?} already")]
    TreeExists(String),
    /// The name of a tree is too long or empty.
    #[error("the name of a tree has 1 to {MAX_TREE_NAME} bytes")]
    TreeName,
    /// The store has the maximum number of trees.
    #[error("the store has {MAX_TREES} trees, which is the most")]
    TooManyTrees,
    /// A transaction is active, so no tree can be dropped.
    #[error("transactions are active: end them before a tree is dropped")]
    Busy,
    /// A tree of another store was given to a transaction.
    #[error("the tree {0:?} belongs to another store")]
    OtherStore(String),
}

impl From<bedplate_bufpool::Error> for Error {
    fn from(error: bedplate_bufpool::Error) -> Self {
        Self::Tree(error.into())
    }
}

impl Error {
    /// The log could not reserve space.
    pub(crate) fn no_space(source: io::Error) -> Self {
        if is_full(&source) {
            Self::NoSpace(source)
        } else {
            Self::Io { what: "reserve space for the log", source }
        }
    }

    /// For `map_err`.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// The same for an operation on the store's directory.
    pub(crate) fn directory(directory: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Directory { directory: directory.to_owned(), what, source }
    }
}
