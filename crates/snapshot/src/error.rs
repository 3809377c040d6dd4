//! What can go wrong, in one line each that says what to do.

/// Why there is no memory, or no snapshot of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Why it did not work.
        source: rustix::io::Errno,
    },
    /// The engine does not work on this machine.
    #[error("the {engine} engine does not work here: {reason}")]
    Unavailable {
        /// Which engine.
        engine: crate::Kind,
        /// Why, and what to do.
        reason: String,
    },
    /// A size that cannot be.
    #[error("a memory of {bytes} bytes: at least one page, at most 2^46 bytes")]
    Size {
        /// What was asked for.
        bytes: usize,
    },
    /// The memory is as large as it can become.
    #[error(
        "the memory cannot grow to {bytes} bytes: {reserved} bytes are reserved for it (Builder::reserve)"
    )]
    Full {
        /// The size that it would have.
        bytes: usize,
        /// The size that it can have.
        reserved: usize,
    },
    /// As many snapshots as there can be at once.
    #[error("{limit} snapshots are active, and there can be no more: let one end")]
    TooManySnapshots {
        /// How many there can be.
        limit: usize,
    },
    /// Changes were asked for of a memory that was made without [`track_changes`](crate::Builder::track_changes).
    #[error("this memory keeps no track of its changes: make it with Builder::track_changes")]
    NotTracked,
    /// The changes since a bookmark of another memory, or of a later snapshot.
    #[error("the bookmark is not of an earlier snapshot of this memory: copy all of it instead")]
    NotEarlier,
    /// A snapshot of a snapshot.
    #[error("this is a snapshot: there are no snapshots of snapshots")]
    OfASnapshot,
    /// The old content of a page could not be kept, so the snapshot was given up; the memory itself is unharmed.
    #[error("the snapshot was given up: no memory for the pages it shared with its owner")]
    Incomplete,
    /// The task panicked, or its process was killed.
    #[error("the task on the snapshot did not end: {0}")]
    Task(String),
}

impl Error {
    /// A thread could not be started.
    pub(crate) fn thread(error: std::io::Error) -> Self {
        let source = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Self::System { what: "starting a thread", source }
    }

    /// For `map_err`.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::System { what, source }
    }
}
