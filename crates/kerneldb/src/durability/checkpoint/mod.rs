//! Checkpoints: consistent images of the whole database, taken while writers go on (paper 6.6).
//!
//! The paper dumps its maps entry by entry through system calls, with writers stopped. Here a
//! snapshot, which keeps the versions that it needs, is scanned straight from mapped memory into large
//! writes.
//!
//! - `source`: the image that is scanned
//! - `format`: the file format, also that of dumps
//! - `files`: writing (complete or not at all), finding, reading, removing
//! - `background`: the thread that takes them by time, by log size and on demand

pub(crate) mod background;
pub(crate) mod files;
pub(crate) mod format;
pub(crate) mod source;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};

/// Triggers and limits of checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointConfig {
    /// Time between automatic checkpoints; `None` = not by time.
    pub interval: Option<Duration>,
    /// Log bytes after which an automatic checkpoint is taken; `None` = not by size.
    pub log_bytes: Option<u64>,
    /// Checkpoints kept, at least 1. The log is kept back to the oldest one, so that no commit is lost
    /// if the newest checkpoint is damaged.
    pub keep: usize,
    /// Most bytes written per second; `None` = as fast as the disk accepts them.
    pub rate_limit: Option<u64>,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig {
            interval: Some(Duration::from_secs(300)),
            log_bytes: Some(1 << 30),
            keep: 2,
            rate_limit: None,
        }
    }
}

/// A finished checkpoint (or dump).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Path of the file; empty for a dump to a stream.
    pub path: PathBuf,
    /// Every commit up to this timestamp is in it, none after.
    pub ts: u64,
    /// Keys in it.
    pub entries: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Blocks in it.
    pub blocks: u64,
    /// The database from which it was taken.
    pub database_id: [u8; 16],
    /// Time at which it was begun, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Time that writing took (or reading, for [`verify`]).
    pub took: Duration,
}

/// Progress of a checkpoint, dump, load or verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Units of work done: scan positions when writing, bytes when reading.
    pub done: u64,
    /// Units in all; 0 = not known.
    pub total: u64,
    /// Keys so far.
    pub entries: u64,
    /// Bytes of the file so far.
    pub bytes: u64,
}

/// State of the background checkpointer.
#[derive(Clone, Debug, Default)]
pub struct CheckpointStatus {
    /// The running checkpoint, if there is one.
    pub running: Option<Progress>,
    /// The last successful one, including those of previous runs of the server.
    pub last: Option<CheckpointInfo>,
    /// The reason why the last attempt failed; `None` if it succeeded or there was none.
    pub last_error: Option<String>,
    /// Successful ones since the start.
    pub completed: u64,
    /// Failed ones since the start.
    pub failed: u64,
}

/// Reads a checkpoint or dump file completely and checks every checksum and count.
pub fn verify(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<CheckpointInfo> {
    let io = |e| Error::io(format!("reading {}", path.display()), e);
    let file = std::fs::File::open(path).map_err(io)?;
    let total = file.metadata().map_err(io)?.len();
    let input = std::io::BufReader::with_capacity(1 << 20, file);
    let info = files::read(input, path, total, &mut |_, _| Ok(()), progress)?;
    if total > info.bytes {
        return Err(Error::Corrupt(format!("{}: bytes follow the footer", path.display())));
    }
    Ok(info)
}

impl CheckpointConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let problem = if self.keep == 0 {
            "at least one checkpoint must be kept"
        } else if self.interval.is_some_and(|i| i < Duration::from_secs(1)) {
            "the checkpoint interval must be 1 s at least"
        } else if self.log_bytes.is_some_and(|b| b < 1 << 20) {
            "the log size between checkpoints must be 1 MiB at least"
        } else if self.rate_limit.is_some_and(|r| r < 1 << 16) {
            "the checkpoint rate must be 64 KiB per second at least"
        } else {
            return Ok(());
        };
        Err(Error::Config(problem.into()))
    }
}
