//! The read engines, and the selection of the one that works on this machine.
//!
//! An engine accepts any number of concurrent reads of files into registered memory, and reports their results. It belongs to one
//! thread, which runs a control loop. That thread sleeps in [`Engine::wait`] until a read completes, its bell rings, or a timeout
//! expires.

mod threads;
mod uring;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::memory::Buffer;
use crate::{Error, Result};

/// A mechanism that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// io_uring: batched submission, registered files and memory.
    Uring,
    /// Threads that call `pread`. They work everywhere.
    Threads,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Threads => "threads",
        })
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "io_uring" => Ok(Self::Uring),
            "threads" => Ok(Self::Threads),
            _ => Err(format!("no engine is called {name}: there are io_uring and threads")),
        }
    }
}

/// The choice of a service's engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best engine that works here; the service tries them.
    #[default]
    Auto,
    /// This engine, or an error if it does not work here.
    Only(Kind),
}

/// A read from a file into registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The engine returns it with the completion.
    pub token: u64,
    /// The file's number, from [`Engine::add_file`].
    pub file: usize,
    /// Offset in the file, in bytes; a multiple of the file's unit.
    pub offset: u64,
    /// The memory's number, from [`Engine::add_memory`].
    pub memory: usize,
    /// Offset in the memory, in bytes; a multiple of the file's unit.
    pub at: usize,
    /// Length in bytes; a multiple of the file's unit. The read may extend beyond the end of the file.
    pub len: usize,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token of the read.
    pub token: u64,
    /// Number of bytes read. It can be less than the length at the end of the file, and sometimes elsewhere.
    pub result: std::result::Result<usize, Errno>,
}

/// A mechanism that reads. Only the thread that made it may use it.
pub trait Engine {
    /// The kind of this engine.
    fn kind(&self) -> Kind;

    /// Describes how the engine works on this machine.
    fn about(&self) -> String;

    /// Registers a file, and returns its number.
    ///
    /// # Errors
    /// The engine cannot accept the file.
    fn add_file(&mut self, file: Arc<OwnedFd>) -> Result<usize>;

    /// Unregisters a file. No read from it may be in progress.
    fn remove_file(&mut self, file: usize);

    /// Registers memory, and returns its number. The engine keeps the memory alive until it is removed.
    ///
    /// # Errors
    /// The engine cannot accept the memory.
    fn add_memory(&mut self, memory: Buffer) -> Result<usize>;

    /// Unregisters memory. No read into it may be in progress.
    fn remove_memory(&mut self, memory: usize);

    /// Accepts a read. The read starts at the next [`wait`](Self::wait) at the latest.
    fn submit(&mut self, read: Read);

    /// Starts the submitted reads, then waits until a read completes, the bell rings or `timeout` expires. Appends the finished
    /// reads to `complete`. It may return early.
    fn wait(&mut self, timeout: Option<Duration>, complete: &mut Vec<Completion>);
}

/// Wakes the control loop. Any thread may ring, and so may any process that has the descriptor.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Creates a bell that has not rung.
    ///
    /// # Errors
    /// The kernel cannot create an eventfd.
    pub fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags).map_err(Error::system("creating an eventfd"))?))
    }

    /// Rings the bell.
    pub fn ring(&self) {
        // The write fails only if the counter is full, and then the bell has already rung.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Resets the bell.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// The descriptor, which is readable after the bell has rung.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }
}

/// Creates an engine. The thread that will use the engine must call this.
pub(crate) fn make(choice: Choice, bell: Arc<Bell>) -> Result<Box<dyn Engine>> {
    let uring = |bell| -> Result<Box<dyn Engine>> { Ok(Box::new(uring::Uring::new(bell)?)) };
    let threads =
        |bell, reason| -> Result<Box<dyn Engine>> { Ok(Box::new(threads::Threads::new(bell, reason)?)) };
    match choice {
        Choice::Only(Kind::Uring) => uring(bell),
        Choice::Only(Kind::Threads) => threads(bell, "as was asked for".to_owned()),
        Choice::Auto => uring(bell.clone()).or_else(|error| {
            tracing::warn!("scans are read by threads: {error}");
            threads(bell, error.to_string())
        }),
    }
}

#[cfg(test)]
mod tests;
