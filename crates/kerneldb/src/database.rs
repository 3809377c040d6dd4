//! The database: the loaded programs, their maps and the mapped arenas.

use crate::{LogTxn, Result, Session};

/// Which storage engine holds the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Arenas (kernel 6.9 and newer).
    #[default]
    Arena,
    /// The paper's hash maps per size class.
    HashMap,
}

/// How to create a database.
#[derive(Clone, Debug)]
pub struct Config {
    /// Storage engine.
    pub engine: EngineKind,
    /// Partitions, 1..=16; one arena of at most 4 GiB each.
    pub partitions: u32,
    /// Memory limit in bytes over all partitions.
    pub memory_bytes: u64,
    /// Sessions at once.
    pub max_sessions: u32,
    /// Versions per key, 1..=64; 1 = single-version mode.
    pub versions: u32,
    /// Size of each log ring in bytes (power of two, per CPU and partition); 0 = no log.
    pub wal_ring_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            engine: EngineKind::Arena,
            partitions: 1,
            memory_bytes: 1 << 30,
            max_sessions: 4096,
            versions: 4,
            wal_ring_bytes: 0,
        }
    }
}

/// A database in the kernel. `Send + Sync`; wrap it in an `Arc`. It is gone when the last handle is
/// dropped, unless it was logged or checkpointed.
pub struct Database {
    _private: (),
}

/// A registered snapshot: a consistent view of all commits up to [`Snapshot::timestamp`], read straight
/// from the mapped arenas without system calls. Writers are not stopped; versions it needs are kept
/// until it is dropped.
pub struct Snapshot<'db> {
    _db: &'db Database,
}

/// One key of a snapshot, borrowed from a scratch buffer of the iteration.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotItem<'a> {
    /// Key bytes.
    pub key: &'a [u8],
    /// Value bytes.
    pub value: &'a [u8],
    /// Absolute expiry in milliseconds since the Unix epoch.
    pub expire_at_ms: Option<u64>,
    /// Commit timestamp of the version.
    pub commit_ts: u64,
}

impl Snapshot<'_> {
    /// Every commit up to and including this timestamp is visible, none after it.
    pub fn timestamp(&self) -> u64 {
        todo!()
    }

    /// Number of scan positions (index buckets over all partitions); `scan` takes positions below it.
    pub fn positions(&self) -> u64 {
        todo!()
    }

    /// Calls `f` for every key visible at positions `from..to` (any order). Expired keys are included.
    pub fn scan(&self, _from: u64, _to: u64, _f: &mut dyn FnMut(SnapshotItem<'_>)) {
        todo!()
    }
}

impl Database {
    /// Loads the programs and creates an empty database.
    pub fn create(_config: Config) -> Result<Database> {
        todo!()
    }

    /// Opens a session.
    pub fn session(&self) -> Result<Session> {
        todo!()
    }

    /// Takes a snapshot for scanning.
    pub fn snapshot(&self) -> Result<Snapshot<'_>> {
        todo!()
    }

    /// Number of keys (expired ones that were not collected yet included).
    pub fn len(&self) -> u64 {
        todo!()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Commit timestamp of the newest completely visible commit.
    pub fn clock(&self) -> u64 {
        todo!()
    }

    /// Recovery: applies one logged transaction with its own timestamp, without logging it again.
    /// Transactions must come in timestamp order; keys of a checkpoint carry the checkpoint's own.
    pub fn replay(&self, _txn: &LogTxn) -> Result<()> {
        todo!()
    }

    /// Recovery: the clock continues after `ts`.
    pub fn set_clock(&self, _ts: u64) -> Result<()> {
        todo!()
    }

    /// The log writer's side of the rings; `None` without a log. Only one exists at a time.
    pub fn log_reader(&self) -> Option<LogReader<'_>> {
        todo!()
    }

    /// Tells the engine how far the log is on disk, and whether it can be written.
    pub fn set_durable(&self, _ts: u64, _failed: bool) {
        todo!()
    }

    /// Every commit up to this timestamp is on disk.
    pub fn durable_ts(&self) -> u64 {
        todo!()
    }
}

/// Consumer of the log rings: merges them into one sequence with consecutive commit timestamps.
pub struct LogReader<'db> {
    _db: &'db Database,
}

impl LogReader<'_> {
    /// Hands over the transactions that are complete, in timestamp order, until there is none left or
    /// `max_bytes` of keys and values were handed over. Ring space is free again when this returns, so
    /// the callee must keep what it needs. Returns how many there were.
    pub fn drain(&mut self, _max_bytes: usize, _f: &mut dyn FnMut(LogTxn)) -> usize {
        todo!()
    }
}
