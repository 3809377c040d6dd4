//! Errors of the database, one type for all of its public functions.

use std::io;

use crate::layout::*;

/// The reason why an operation did not happen. Every message says what is wrong; [`Error::hint`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A procedure has refused the call, for this reason. If it had written before, the caller's transaction can only be rolled
    /// back.
    #[error("{0}")]
    Refused(String),
    /// There is no procedure of this name.
    #[error("there is no procedure {}", .0.chars().take(128).collect::<String>())]
    NoProcedure(String),
    /// A library cannot be loaded or removed, for this reason.
    #[error("{0}")]
    Library(String),
    /// The writes of a call, with those before it in the transaction, exceed the log ring, whose size in bytes this is. They
    /// can be appended only together.
    #[error("the procedure writes more than the log ring of {0} bytes holds")]
    CallTooLarge(u32),
    /// A procedure or a handler used keys of other partitions than the one it runs in too often.
    #[error(
        "too many steps on keys of other partitions: a procedure may have {}, a handler fewer",
        crate::limits::CALL_VISITS_MAX
    )]
    TooManyVisits,
    /// Another transaction holds a lock. The caller's transaction, if any, must be rolled back; retry it.
    #[error("conflict with another transaction")]
    Conflict,
    /// The memory limit is reached; nothing was changed.
    #[error("out of memory: the database is at its memory limit")]
    NoMemory,
    /// The memory limit is reached, but the log's writer still needs values that were overwritten. Some memory comes
    /// back when it has read them, so retry. If that memory is not enough, a later attempt of the same session returns
    /// [`Error::NoMemory`]. A transaction stays open, and the same call may be repeated in it.
    #[error("out of memory: the database is at its memory limit, and the log's writer holds a part of it")]
    MemoryInLog,
    /// All versions of the key are still visible to read-only transactions; retry later.
    #[error("all versions of the key are in use by read-only transactions")]
    NoVersion,
    /// The log ring is full, and nothing was changed; retry once the log writer has caught up. A transaction stays
    /// open, so the same call may be repeated in it; that holds for [`crate::Session::commit`] as well.
    #[error("the write-ahead log ring is full")]
    WalFull,
    /// The log cannot be written (disk full, I/O error). The database is read-only until the log can be written again.
    #[error("the write-ahead log cannot be written: the database is read-only")]
    WalFailed,
    /// Key or value longer than [`crate::KEY_MAX`] or [`crate::VALUE_MAX`], or an empty key.
    #[error("{0}")]
    TooLarge(&'static str),
    /// The transaction touches more keys than one transaction can lock.
    #[error("the transaction touches more than {} keys", crate::TX_KEYS_MAX)]
    TooManyLocks,
    /// The writes of the transaction exceed [`crate::limits::TX_BYTES_MAX`]; it must be rolled back.
    #[error("the transaction writes more than {} bytes", crate::limits::TX_BYTES_MAX)]
    TransactionTooLarge,
    /// The snapshot of the read-only transaction, scan, dump or checkpoint was revoked, because a writer needed its
    /// versions and it was older than its grace period ([`crate::Timeouts`]). Begin anew.
    #[error("the snapshot is too old: a writer needed its versions")]
    SnapshotTooOld,
    /// The transaction exceeded its age or idle limit ([`crate::Timeouts`]) and was rolled back. COMMIT or ROLLBACK
    /// ends it for the session.
    #[error("the transaction exceeded its time limit and was rolled back")]
    TimedOut,
    /// The operator is not allowed in the session's transaction state.
    #[error("operation not allowed in this transaction state")]
    State,
    /// The transaction met an error before and can only be rolled back.
    #[error("the transaction has failed and can only be rolled back")]
    Aborted,
    /// The key's hash chain has as many entries as a chain may have ([`crate::limits::CHAIN_ENTRIES_MAX`]).
    /// Deleting keys makes room, but only keys of the same chain.
    #[error("the key's hash chain is full: {} keys have the same bucket", crate::limits::CHAIN_ENTRIES_MAX)]
    ChainFull,
    /// A latch, or a lock that an operator holds for a moment only, could not be acquired, and nothing was changed;
    /// retry. A transaction stays open, so the same call may be repeated in it; that holds for
    /// [`crate::Session::commit`] as well.
    #[error("busy, retry")]
    Busy,
    /// No session is free: raise the limit on sessions.
    #[error("no free session: {0} are in use")]
    NoSession(u32),
    /// The kernel refused a request (missing privilege, too old, verifier).
    #[error("{what}: {source}")]
    Kernel {
        /// The operation that failed.
        what: String,
        /// The kernel's or libbpf's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed, with the path.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Saved data is damaged at a place where damage is not tolerated.
    #[error("corrupt data: {0}")]
    Corrupt(String),
    /// A configuration value is out of range.
    #[error("invalid configuration: {0}")]
    Config(String),
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error behind a status of the kernel side.
    pub(crate) fn of_status(status: u32) -> Error {
        match status {
            KDB_ERR_CONFLICT => Error::Conflict,
            KDB_ERR_NO_MEMORY => Error::NoMemory,
            KDB_ERR_MEMORY_IN_LOG => Error::MemoryInLog,
            KDB_ERR_NO_VERSION => Error::NoVersion,
            KDB_ERR_WAL_FULL => Error::WalFull,
            KDB_ERR_WAL_FAILED => Error::WalFailed,
            KDB_ERR_TOO_LARGE => Error::TooLarge("a key has 1 to 255 bytes, a value at most 65536"),
            KDB_ERR_TOO_MANY_LOCKS => Error::TooManyLocks,
            KDB_ERR_CHAIN => Error::ChainFull,
            KDB_ERR_TX_TOO_LARGE => Error::TransactionTooLarge,
            KDB_ERR_SNAPSHOT_TOO_OLD => Error::SnapshotTooOld,
            KDB_ERR_TX_TIMED_OUT => Error::TimedOut,
            KDB_ERR_BUSY => Error::Busy,
            KDB_ERR_ABORTED => Error::Aborted,
            KDB_ERR_TOO_MANY_VISITS => Error::TooManyVisits,
            _ => Error::State,
        }
    }

    /// Whether the same operation may succeed if the caller tries it again a little later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Error::Conflict
                | Error::MemoryInLog
                | Error::NoVersion
                | Error::WalFull
                | Error::Busy
                | Error::SnapshotTooOld
        )
    }

    /// Whether an operation that ends with this error leaves its transaction open: the operation had no effect, and the
    /// same call may be repeated in the transaction. Every other error fails a transaction.
    pub fn keeps_transaction(&self) -> bool {
        matches!(self, Error::MemoryInLog | Error::WalFull | Error::Busy)
    }

    /// The user's remedy, if there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::NoMemory | Error::MemoryInLog => Some("raise the memory limit, or delete keys"),
            Error::WalFailed => Some("free space on the log's disk; writes resume by themselves"),
            Error::CallTooLarge(_) => Some("raise the size of the log rings"),
            Error::TransactionTooLarge => Some("split the work over several transactions"),
            Error::NoSession(_) => Some("raise the maximum number of clients"),
            Error::Kernel { .. } => Some("run `bedplate doctor`"),
            _ => None,
        }
    }

    /// Wraps an I/O error; `what` is the operation that failed.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Error::Io { what: what.into(), source }
    }
}
