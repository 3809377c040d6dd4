//! Plain types of the public interface.

/// The time at which a write is acknowledged (paper 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Writes are not logged.
    Off,
    /// A write is logged, and acknowledged before it is on disk.
    #[default]
    Async,
    /// A write is acknowledged after fsync.
    Sync,
}

/// Options of a SET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetOptions {
    /// Absolute expiry in milliseconds since the Unix epoch; `None` = never.
    pub expire_at_ms: Option<u64>,
    /// Keep the expiry that the key has (then `expire_at_ms` is ignored).
    pub keep_ttl: bool,
    /// Only write under this condition.
    pub condition: SetCondition,
}

/// Condition of a SET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetCondition {
    /// Write in any case.
    #[default]
    Always,
    /// Write only if the key does not exist.
    IfAbsent,
    /// Write only if the key exists.
    IfPresent,
}

/// A value read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub data: Vec<u8>,
    /// Absolute expiry in milliseconds since the Unix epoch, if the key expires.
    pub expire_at_ms: Option<u64>,
    /// Commit timestamp of the version read; 0 for this transaction's own uncommitted write.
    pub commit_ts: u64,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Written; the commit timestamp is 0 inside a transaction that has not committed yet.
    Done {
        /// Commit timestamp.
        commit_ts: u64,
    },
    /// The condition did not hold; nothing was changed.
    ConditionFailed,
}

/// One change of a committed transaction, as logged and replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The key has this value now.
    Put {
        /// Key bytes.
        key: Vec<u8>,
        /// Value bytes.
        value: Vec<u8>,
        /// Absolute expiry in milliseconds since the Unix epoch.
        expire_at_ms: Option<u64>,
    },
    /// The key is gone.
    Delete {
        /// Key bytes.
        key: Vec<u8>,
    },
}

impl Op {
    /// The key that is changed.
    pub fn key(&self) -> &[u8] {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}

/// One committed transaction in the log. An empty `ops` keeps the timestamps dense (a commit that was
/// not to be logged).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTxn {
    /// Commit timestamp; consecutive transactions have consecutive timestamps.
    pub commit_ts: u64,
    /// Changes in the order in which they were made; the last change of a key wins.
    pub ops: Vec<Op>,
}
