//! What reads: the engines, and which of them works here.
//!
//! An engine takes reads of files into registered memory, any number at a time, and tells what became of them. It belongs
//! to one thread, the control loop's, which sleeps in [`Engine::wait`] for completions, its bell, or a moment.

mod threads;
mod uring;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::memory::Frames;
use crate::{Error, Result};

/// A mechanism that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// io_uring: batched submission, registered files and memory.
    Uring,
    /// Threads that call `pread`: works everywhere.
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

/// Which engine a service gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best one that works here, found by trying.
    #[default]
    Auto,
    /// This one, or an error.
    Only(Kind),
}

/// A read into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Comes back with the completion.
    pub token: u64,
    /// What [`Engine::add_file`] said.
    pub file: usize,
    /// Where in the file; a multiple of the file's unit.
    pub offset: u64,
    /// What [`Engine::add_memory`] said.
    pub memory: usize,
    /// Where in the memory; likewise.
    pub at: usize,
    /// How much; likewise. It may go beyond the end of the file.
    pub len: usize,
}

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The read's.
    pub token: u64,
    /// How many bytes were read: fewer than wanted at the end of the file, and sometimes elsewhere.
    pub result: std::result::Result<usize, Errno>,
}

/// A mechanism that reads. Only the thread that made it uses it.
pub trait Engine {
    /// Which one this is.
    fn kind(&self) -> Kind;

    /// How it works here, in words.
    fn about(&self) -> String;

    /// Makes a file known.
    ///
    /// # Errors
    /// The engine cannot take it.
    fn add_file(&mut self, file: Arc<OwnedFd>) -> Result<usize>;

    /// Forgets a file from which nothing is being read.
    fn remove_file(&mut self, file: usize);

    /// Makes memory known, and keeps it.
    ///
    /// # Errors
    /// The engine cannot take it.
    fn add_memory(&mut self, memory: Arc<Frames>) -> Result<usize>;

    /// Forgets memory into which nothing is being read.
    fn remove_memory(&mut self, memory: usize);

    /// Takes a read; it begins at the next [`wait`](Self::wait) at the latest.
    fn submit(&mut self, read: Read);

    /// Begins what was submitted; waits until a read is complete, the bell rings or the time is over, whichever is first;
    /// hands out what is complete.
    fn wait(&mut self, timeout: Option<Duration>, complete: &mut Vec<Completion>);
}

/// Wakes the control loop. Any thread, and any process that has the descriptor, may ring.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new one.
    pub fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags).map_err(Error::system("creating an eventfd"))?))
    }

    /// Rings.
    pub fn ring(&self) {
        // It cannot fail but for a full counter, and then it has rung already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it quiet.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// What is readable when it has rung.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }
}

/// Makes an engine, in the thread that will use it.
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
