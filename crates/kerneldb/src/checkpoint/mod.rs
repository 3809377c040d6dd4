//! Checkpoints: consistent images of the whole database, taken while writers go on (paper 6.6).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;

/// When checkpoints are taken, and how.
#[derive(Clone, Debug)]
pub struct CheckpointConfig {
    /// Time between automatic checkpoints; `None` = not by time.
    pub interval: Option<Duration>,
    /// Log bytes after which an automatic checkpoint is taken; `None` = not by size.
    pub log_bytes: Option<u64>,
    /// Checkpoints kept, at least 1. The log is kept back to the oldest one, so that a damaged newest
    /// checkpoint does not lose anything.
    pub keep: usize,
    /// Most bytes written per second; `None` = as fast as the disk takes them.
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
    /// Where it is; empty for a dump to a stream.
    pub path: PathBuf,
    /// Every commit up to this timestamp is in it, none after.
    pub ts: u64,
    /// Keys in it.
    pub entries: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Blocks in it.
    pub blocks: u64,
    /// Database it was taken of.
    pub database_id: [u8; 16],
    /// When it was begun, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// How long it took to write (or to read, for [`verify`]).
    pub took: Duration,
}

/// How far a checkpoint, dump, load or verification is.
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
    /// The last successful one, also of a previous run of the server.
    pub last: Option<CheckpointInfo>,
    /// Why the last attempt failed; `None` if it succeeded or there was none.
    pub last_error: Option<String>,
    /// Successful ones since the start.
    pub completed: u64,
    /// Failed ones since the start.
    pub failed: u64,
}

/// Reads a checkpoint or dump file completely and checks every checksum and count.
pub fn verify(_path: &Path, _progress: &mut dyn FnMut(Progress)) -> Result<CheckpointInfo> {
    todo!()
}
