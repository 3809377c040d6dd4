//! Recovery: newest valid checkpoint, then the log after it.

use std::path::PathBuf;
use std::time::Duration;

/// How careful recovery is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryOptions {
    /// Recover what can be recovered although data in the middle is damaged: everything before the
    /// first damage. Without it that is [`crate::Error::Corrupt`].
    pub force: bool,
}

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Checkpoint that was loaded.
    pub checkpoint: Option<PathBuf>,
    /// Its timestamp, 0 if there was none.
    pub checkpoint_ts: u64,
    /// Keys loaded from it.
    pub checkpoint_entries: u64,
    /// Newer checkpoints that were skipped because they are damaged, with the reason.
    pub checkpoints_skipped: Vec<String>,
    /// Log segments read.
    pub segments: u64,
    /// Transactions replayed from the log.
    pub txns: u64,
    /// Changes in them.
    pub ops: u64,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Bytes cut off the end of the log because the last write was torn.
    pub torn_bytes: u64,
    /// Timestamp of the newest recovered commit.
    pub recovered_ts: u64,
    /// What was given up under [`RecoveryOptions::force`].
    pub damage: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// How far recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// What is being read.
    pub phase: RecoveryPhase,
    /// Bytes of the phase read.
    pub done_bytes: u64,
    /// Bytes of the phase in all.
    pub total_bytes: u64,
    /// Keys or transactions applied in the phase.
    pub applied: u64,
}

/// Phases of recovery, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryPhase {
    /// Loading the checkpoint.
    Checkpoint,
    /// Replaying the log.
    Log,
}
