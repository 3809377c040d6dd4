//! Errors. Each message is one line and says what to do.

use std::path::PathBuf;

use crate::board::Fault;

/// The result of an operation that can fail with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a scan or a page is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The error number of the system call.
        source: rustix::io::Errno,
    },
    /// A file cannot be scanned.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A page could not be read. The scan can continue with the next one.
    #[error("reading file {file} of the scan at byte {offset}: {source}")]
    Read {
        /// The file of the scan, counted from 0.
        file: u32,
        /// The offset of the page.
        offset: u64,
        /// The reason.
        source: rustix::io::Errno,
    },
    /// A file has become shorter than it was when the scan began, and a page of it does not exist, or only a part of it. The scan
    /// can continue with the next page.
    #[error(
        "file {file} of the scan ends before byte {offset}, as it did not when the scan began: it was truncated"
    )]
    Truncated {
        /// The file of the scan, counted from 0.
        file: u32,
        /// The first byte that does not exist.
        offset: u64,
    },
    /// A page could not be read in a consistent state, because the file is written all the time. The scan can continue with the
    /// next page.
    #[error(
        "file {file} of the scan is written faster than it can be read at byte {offset}: scan it when it is at rest"
    )]
    Changing {
        /// The file of the scan, counted from 0.
        file: u32,
        /// The offset of the page.
        offset: u64,
    },
    /// The file of a page was unlinked, or another file has taken its name, since the scan began. The scan can continue with the
    /// next page.
    #[error("file {file} of the scan was replaced or deleted since the scan began: begin anew")]
    Replaced {
        /// The file of the scan, counted from 0.
        file: u32,
        /// The offset of the page.
        offset: u64,
    },
    /// The engine does not work on this machine.
    #[error("the {engine} engine does not work here: {reason}")]
    Unavailable {
        /// The engine.
        engine: crate::Kind,
        /// The reason.
        reason: String,
    },
    /// The request is not possible.
    #[error("{0}")]
    Invalid(String),
    /// The worker asked for a page while it holds the maximum number of pages.
    #[error("pages of the channel have not been returned: as many are out as it was opened for (pages_held)")]
    Held,
    /// The worker returned a page while it holds none.
    #[error("the channel has no page to return")]
    NotHeld,
    /// The service that reads has ended.
    #[error("the scan service has ended")]
    Gone,
    /// The object was inherited by a fork. No thread of this process reads for it.
    #[error(
        "it is the parent process's, and nothing reads for it in a forked child: open another in this process"
    )]
    Forked,
    /// The service of another process refuses the request.
    #[error("the scan service refuses: {0}")]
    Refused(String),
    /// The other side does not speak this protocol.
    #[error("{0}")]
    Protocol(String),
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::System { what, source }
    }

    /// The error of a page from the board's fault, which is the fault of the page's first faulty unit. The page begins at offset
    /// `page` in its file. The unit begins at `unit`, which may be before the page.
    pub(crate) fn of(fault: Fault, file: u32, page: u64, unit: u64) -> Self {
        let Fault { code, detail } = fault;
        match code {
            TRUNCATED => Self::Truncated { file, offset: page.max(unit.saturating_add(detail.into())) },
            CHANGING => Self::Changing { file, offset: page },
            REPLACED => Self::Replaced { file, offset: page },
            _ => {
                Self::Read { file, offset: page, source: rustix::io::Errno::from_raw_os_error(detail as i32) }
            }
        }
    }
}

/// [`Error::Read`] on a board, with the error number.
pub(crate) const READ: u32 = 1;
/// [`Error::Truncated`] on a board, with the first byte of the unit that is missing.
pub(crate) const TRUNCATED: u32 = 2;
/// [`Error::Changing`] on a board.
pub(crate) const CHANGING: u32 = 3;
/// [`Error::Replaced`] on a board.
pub(crate) const REPLACED: u32 = 4;
