//! Errors of the harness.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a machine did not run to its end. Every message says what is wrong; [`Error::hint`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that the harness needs is not installed.
    #[error("{program} is not installed")]
    Missing {
        /// Its name.
        program: &'static str,
        /// Debian's package that has it.
        package: &'static str,
    },
    /// A kernel could not be had.
    #[error("no kernel of the series {series}: {problem}")]
    NoKernel {
        /// The series.
        series: String,
        /// What went wrong, with the last words of the program that failed.
        problem: String,
    },
    /// A program or a library for the guest is not there.
    #[error("{path}: {problem}")]
    NotFound {
        /// What was looked for.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// QEMU ended without having booted the guest.
    #[error("QEMU failed: {0}")]
    Qemu(String),
    /// The guest ended before its jobs did: a panic, or somebody switched it off.
    #[error("the guest's kernel stopped before its work was done{}", after(why))]
    Died {
        /// The console's line that tells why, if there is one.
        why: Option<String>,
        /// End of the console's output.
        console: String,
    },
    /// The time limit is over; the guest was killed.
    #[error("the guest did not end within {limit:?}")]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// End of the console's output.
        console: String,
    },
    /// Something of the host's operating system.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

fn after(why: &Option<String>) -> String {
    why.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
}

/// Result with the harness's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: an operating system's error with what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { what: what.into(), source }
    }

    /// What the user can do, if it is not obvious.
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

    /// The end of the guest's console, where that can tell what went wrong.
    pub fn console(&self) -> Option<&str> {
        match self {
            Error::Died { console, .. } | Error::TimedOut { console, .. } => Some(console),
            _ => None,
        }
    }
}
