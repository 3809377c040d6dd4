//! Reasons why a benchmark could not run or has no valid result.

use std::io;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No benchmark has this name.
    #[error("no benchmark is called {0:?}; there are: {names}", names = crate::names().join(", "))]
    Unknown(String),
    /// The number of writing threads is out of range.
    #[error("{0} threads cannot write; choose 1 to {max}", max = crate::THREADS_MAX)]
    Threads(usize),
    /// No engine has this name.
    #[error("{asked}; choose one with --engine: {names}", asked = asked_engine(.0), names = crate::tpch::engines().join(", "))]
    Engine(String),
    /// The scale factor is out of range.
    #[error("a scale factor of {0} is not between 0.01 and 100")]
    Scale(f64),
    /// Something that the benchmark needs is not there.
    #[error("{what}; {hint}")]
    Missing {
        /// The thing that is missing.
        what: String,
        /// The way to get it.
        hint: &'static str,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that was attempted.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A server's answer did not match the protocol or the data.
    #[error("wrong answer from {server}: {problem}")]
    Protocol {
        /// The server's name.
        server: String,
        /// The difference.
        problem: String,
    },
    /// A store that is measured failed.
    #[error("{store}: {problem}")]
    Store {
        /// The store's name.
        store: &'static str,
        /// The store's message.
        problem: String,
    },
    /// The database reported an error.
    #[error(transparent)]
    Database(#[from] bedplate_kerneldb::Error),
    /// The buffer pool reported an error.
    #[error(transparent)]
    Pool(#[from] bedplate_bufpool::Error),
    /// A scan failed.
    #[error(transparent)]
    Scan(#[from] bedplate_scan::Error),
    /// A snapshot memory reported an error.
    #[error(transparent)]
    Snapshot(#[from] bedplate_snapshot::Error),
}

/// The first part of the message about a wrong engine name.
fn asked_engine(name: &str) -> String {
    if name.is_empty() { "no engine is chosen".to_owned() } else { format!("no engine is called {name:?}") }
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Adapter for `map_err`: wraps an I/O error with the attempted operation.
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
        move |source| Error::Io { what: what.into(), source: source.into() }
    }

    /// The engine's data or progress was wrong.
    pub(crate) fn engine(problem: String) -> Error {
        Error::Protocol { server: "the engine".to_owned(), problem }
    }
}
