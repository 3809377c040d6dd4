//! What can go wrong, in one line each that says what to do.

use std::io;

use crate::engine::Kind;
use crate::page::{Damage, PageId};
use crate::page_size::PageSize;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done. The pool is as it was before, and goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A page could not be read. Nothing was lost; it can be tried again.
    #[error("page {page} could not be read: {source}")]
    Read {
        /// Which.
        page: PageId,
        /// Why.
        source: io::Error,
    },
    /// A page could not be written. It stays in the pool, dirty, and is written again when room is needed or at the next
    /// flush.
    #[error("page {page} could not be written and stays in memory: {source}")]
    Write {
        /// Which, if several the first.
        page: PageId,
        /// Why.
        source: io::Error,
    },
    /// Something else about the storage failed.
    #[error("{what}: {source}")]
    Storage {
        /// What was tried.
        what: &'static str,
        /// Why it did not work.
        source: io::Error,
    },
    /// An earlier fsync failed, and pages that it was to make durable have not been written once more. Trying again writes
    /// them.
    #[error("an earlier fsync failed, and not everything that it covered has been written again: try again")]
    NotDurable,
    /// A page left memory, storage lost it before it was durable, and an older one is in its place.
    #[error(
        "storage lost page {page}, which it had accepted, before it was durable: recover it from the log"
    )]
    Lost {
        /// Which.
        page: PageId,
    },
    /// A page in storage is not what was written.
    #[error("page {page} is damaged: {damage}")]
    Damaged {
        /// Which.
        page: PageId,
        /// How.
        damage: Damage,
    },
    /// There is no page of this number.
    #[error("there is no page {page}")]
    NoSuchPage {
        /// The number.
        page: PageId,
    },
    /// All pages of the storage are in use.
    #[error("all {pages} pages of the storage are in use: free some, or open it with a larger capacity")]
    Full {
        /// How many there are.
        pages: u64,
    },
    /// No page could be evicted.
    #[error(
        "all {frames} pages in memory are pinned: give the pool more memory, or hold fewer pages at once"
    )]
    Pinned {
        /// How many there are.
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
        /// How much.
        bytes: usize,
        /// Why, and which setting to change.
        reason: String,
    },
    /// The engine does not work on this machine.
    #[error("the {engine} engine does not work here: {reason}")]
    Unavailable {
        /// Which.
        engine: Kind,
        /// Why, and what to do.
        reason: String,
    },
    /// A setting that cannot be.
    #[error("{what} of {value}: {must}")]
    Setting {
        /// Which.
        what: &'static str,
        /// What it was.
        value: u64,
        /// What it has to be.
        must: &'static str,
    },
    /// The pool has pages of another size than was asked for.
    #[error(
        "pages of {asked} were asked for, and the pool was created with pages of {found}: ask for that size, or for none"
    )]
    PageSize {
        /// The size that was asked for.
        asked: PageSize,
        /// The size of the pool's pages.
        found: PageSize,
    },
    /// The storage holds something else.
    #[error("this is not a pool's storage: {0}")]
    Format(String),
    /// The pool in this storage was not closed.
    #[error(
        "the pool was not closed, so what is in storage is of different moments: open it with its log, which redoes what is missing"
    )]
    Unclean,
    /// Somebody uses the pool while it is being closed.
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

/// An optimistic read was disturbed: what was read does not count, begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page changed while it was read")]
pub struct Restart;
