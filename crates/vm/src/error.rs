//! Errors of the harness.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why a machine did not run to its end. Every message describes the problem; [`Error::hint`] has a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that the harness needs is not installed.
    #[error("{program} is not installed")]
    Missing {
        /// The name of the program.
        program: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// There is no kernel of this series.
    #[error("no kernel of the series {series}: {problem}")]
    NoKernel {
        /// The series.
        series: String,
        /// The problem, with the last output of the program that failed.
        problem: String,
    },
    /// A program or a library for the guest does not exist.
    #[error("{path}: {problem}")]
    NotFound {
        /// The file that was looked for.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
    },
    /// QEMU ended before the guest had booted.
    #[error("QEMU failed: {0}")]
    Qemu(String),
    /// The guest ended before its jobs did, because of a panic or because it was switched off.
    #[error("the guest's kernel stopped before its work was done{}", after(why))]
    Died {
        /// The console's line with the reason, if there is one.
        why: Option<String>,
        /// End of the console's output.
        console: String,
    },
    /// The time limit was exceeded, and the guest was killed.
    #[error("the guest did not end within {limit:?}")]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// End of the console's output.
        console: String,
    },
    /// An operation of the host's operating system failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The operating system's reason.
        source: io::Error,
    },
}

fn after(why: &Option<String>) -> String {
    why.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
}

/// Result with the harness's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of an operating system's error and the operation, for `map_err`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { what: what.into(), source }
    }

    /// Advice to the user, if the remedy is not obvious.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Missing { package, .. } => Some(format!("make setup, or: apt-get install {package}")),
            Error::NoKernel { .. } => Some(
                "it takes a network, apt and Debian's keyring; BEDPLATE_DEBIAN_MIRROR names another mirror than \
                 http://deb.debian.org; or pass a kernel that you have"
                    .into(),
            ),
            Error::TimedOut { .. } => Some("look at the console above; a longer limit: --timeout".into()),
            _ => None,
        }
    }

    /// The end of the guest's console output, if it can explain the error.
    pub fn console(&self) -> Option<&str> {
        match self {
            Error::Died { console, .. } | Error::TimedOut { console, .. } => Some(console),
            _ => None,
        }
    }
}
