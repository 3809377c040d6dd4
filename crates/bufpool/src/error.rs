//! The errors of a pool. Each message is one line that says what to do.

use std::io;

use crate::engine::Kind;
use crate::page::{Damage, PageId};
use crate::page_size::PageSize;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an operation failed. The pool is unchanged, and remains usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A page could not be read. No data was lost. The read can be repeated.
    #[error("page {page} could not be read: {source}")]
    Read {
        /// The page.
        page: PageId,
        /// The reason.
        source: io::Error,
    },
    /// A page could not be written. It stays in the pool as dirty. It is written again when a frame is needed, or at the next
    /// flush.
    #[error("page {page} could not be written and stays in memory: {source}")]
    Write {
        /// The page, or the first of several.
        page: PageId,
        /// The reason.
        source: io::Error,
    },
    /// Another operation of the storage failed.
    #[error("{what}: {source}")]
    Storage {
        /// The operation.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// An earlier fsync failed, and pages that it should have made durable have not been written once more. Another attempt
    /// writes them.
    #[error("an earlier fsync failed, and not everything that it covered has been written again: try again")]
    NotDurable,
    /// A page left memory, and storage lost it before it was durable. Its place has an older image.
    #[error(
        "storage lost page {page}, which it had accepted, before it was durable: recover it from the log"
    )]
    Lost {
        /// The page.
        page: PageId,
    },
    /// A page in storage differs from what was written.
    #[error("page {page} is damaged: {damage}")]
    Damaged {
        /// The page.
        page: PageId,
        /// The kind of damage.
        damage: Damage,
    },
    /// There is no page with this number.
    #[error("there is no page {page}")]
    NoSuchPage {
        /// The number.
        page: PageId,
    },
    /// All pages of the storage are in use.
    #[error("all {pages} pages of the storage are in use: free some, or open it with a larger capacity")]
    Full {
        /// Their number.
        pages: u64,
    },
    /// No page could be evicted.
    #[error(
        "all {frames} pages in memory are pinned: give the pool more memory, or hold fewer pages at once"
    )]
    Pinned {
        /// Their number.
        frames: usize,
    },
    /// The log could not be made durable, so pages that depend on it were not written.
    #[error("the log could not be made durable: {0}")]
    Log(#[source] io::Error),
    /// The superblock says that pages have greater log sequence numbers than the end of the log. The log lost records that had
    /// been durable, or it is an older copy. Opening the pool changed nothing.
    #[error(
        "the log has lost its end: it ends at LSN {log_end}, and the pages have LSN {pages}: put the newest copy of the log \
         in its place, or restore a backup"
    )]
    LogTooShort {
        /// The LSN where the log ends.
        log_end: u64,
        /// The LSN that the pages have by the superblock.
        pages: u64,
    },
    /// A page in storage has a greater log sequence number than the log had when the pool was opened. The log lost records that
    /// had been durable, or it is an older copy.
    #[error(
        "page {page} has LSN {lsn}, and the log, which has lost its end, ended at LSN {log_end}: put the newest copy of the \
         log in its place, or restore a backup"
    )]
    PageAheadOfLog {
        /// The page.
        page: PageId,
        /// Its LSN.
        lsn: u64,
        /// The LSN where the log ended when the pool was opened.
        log_end: u64,
    },
    /// There is no address space for the pool.
    #[error("no {bytes} bytes of address space for the pool: {reason}")]
    AddressSpace {
        /// The number of bytes.
        bytes: usize,
        /// The reason, and the setting to change.
        reason: String,
    },
    /// The engine does not work on this machine.
    #[error("the {engine} engine does not work here: {reason}")]
    Unavailable {
        /// The engine.
        engine: Kind,
        /// The reason, and what to do.
        reason: String,
    },
    /// A setting has an invalid value.
    #[error("{what} of {value}: {must}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// The value.
        value: u64,
        /// The condition that the value must meet.
        must: &'static str,
    },
    /// The pool has another page size than requested.
    #[error(
        "pages of {asked} were asked for, and the pool was created with pages of {found}: ask for that size, or for none"
    )]
    PageSize {
        /// The requested size.
        asked: PageSize,
        /// The size of the pool's pages.
        found: PageSize,
    },
    /// The storage contains something else.
    #[error("this is not a pool's storage: {0}")]
    Format(String),
    /// The pool in this storage was not closed.
    #[error(
        "the pool was not closed, so what is in storage is of different moments: open it with its log, which redoes what is missing"
    )]
    Unclean,
    /// A thread uses the pool while it is being closed.
    #[error("page {page} is in use or was changed while the pool was being closed")]
    Busy {
        /// One of the pages.
        page: PageId,
    },
}

/// The same error once more, for another thread that receives it.
pub(crate) fn same_io_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl Error {
    /// The same error once more, for another thread that receives it. It is of a kind that eviction and write-back return.
    pub(crate) fn same(&self) -> Self {
        match self {
            Self::Write { page, source } => Self::Write { page: *page, source: same_io_error(source) },
            Self::Log(source) => Self::Log(same_io_error(source)),
            Self::Storage { what, source } => Self::Storage { what, source: same_io_error(source) },
            other => Self::Storage { what: "free a frame", source: io::Error::other(other.to_string()) },
        }
    }

    /// For `map_err`.
    pub(crate) fn storage(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Storage { what, source }
    }
}

/// An optimistic read was disturbed. Its result does not count, so the caller begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page changed while it was read")]
pub struct Restart;
