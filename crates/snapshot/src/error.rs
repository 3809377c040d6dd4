//! The errors of this crate. Each message is one line and says, where possible, how to fix the problem.

/// The reason why a memory or a snapshot is not available.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The reason of the failure.
        source: rustix::io::Errno,
    },
    /// The engine does not work on this machine.
    #[error("the {engine} engine does not work here: {reason}")]
    Unavailable {
        /// The engine.
        engine: crate::Kind,
        /// The reason, and how to fix it.
        reason: String,
    },
    /// An invalid size.
    #[error("a memory of {bytes} bytes: at least one page, at most 2^46 bytes")]
    Size {
        /// The requested size in bytes.
        bytes: usize,
    },
    /// The memory has reached its reserved size.
    #[error(
        "the memory cannot grow to {bytes} bytes: {reserved} bytes are reserved for it (Builder::reserve)"
    )]
    Full {
        /// The requested size in bytes.
        bytes: usize,
        /// The reserved size in bytes.
        reserved: usize,
    },
    /// The limit of active snapshots is reached.
    #[error("{limit} snapshots are active, and there can be no more: let one end")]
    TooManySnapshots {
        /// The limit.
        limit: usize,
    },
    /// The memory was built without [`track_changes`](crate::Builder::track_changes), so changes are not known.
    #[error("this memory keeps no track of its changes: make it with Builder::track_changes")]
    NotTracked,
    /// The bookmark is of another memory, or of a later snapshot.
    #[error("the bookmark is not of an earlier snapshot of this memory: copy all of it instead")]
    NotEarlier,
    /// The operation is not available in a process that runs a task, because it has only a snapshot.
    #[error("this is a snapshot: there are no snapshots of snapshots")]
    OfASnapshot,
    /// The old content of a page could not be kept, so the snapshot was abandoned. The memory itself is not
    /// affected.
    #[error("the snapshot was given up: no memory for the pages it shared with its owner")]
    Incomplete,
    /// The task panicked, or its process was killed.
    #[error("the task on the snapshot did not end: {0}")]
    Task(String),
}

impl Error {
    /// Makes an error of the failure to start a thread.
    pub(crate) fn thread(error: std::io::Error) -> Self {
        let source = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Self::System { what: "starting a thread", source }
    }

    /// Makes an error of a failed system call, for `map_err`.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::System { what, source }
    }
}
