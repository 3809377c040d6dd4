//! Limits of a store. An operation beyond a limit returns the named error and changes nothing.

/// Bytes in the name of a tree; a longer or an empty name is [`Error::TreeName`](super::Error::TreeName).
pub const MAX_TREE_NAME: usize = 255;

/// Trees of a store, the catalog not counted; one more is [`Error::TooManyTrees`](super::Error::TooManyTrees).
pub const MAX_TREES: usize = 4096;

/// Puts and removals of a transaction; one more is
/// [`Error::TransactionTooLarge`](super::Error::TransactionTooLarge). A second write of a key replaces the first.
pub const MAX_TRANSACTION_WRITES: usize = 1 << 20;

/// Bytes of the keys and values that a transaction writes, and of the values that they replace in the trees. Beyond it,
/// [`Error::TransactionTooLarge`](super::Error::TransactionTooLarge).
pub const MAX_TRANSACTION_BYTES: usize = 64 << 20;

/// Bytes of the keys and the range bounds that a write transaction remembers for its validation. Beyond it,
/// [`Error::TransactionTooLarge`](super::Error::TransactionTooLarge).
pub const MAX_READ_BYTES: usize = 64 << 20;

/// Bytes that each remembered key or range counts besides its own, against [`MAX_READ_BYTES`].
pub(crate) const READ_OVERHEAD: usize = 64;

/// A range that a write transaction reads is united with one that it touches, if that is among so many last ones.
pub(crate) const RECENT_RANGES: usize = 16;

/// Bytes of superseded values that are kept for snapshots, unless the builder says otherwise. Beyond it the values of the
/// oldest snapshots are dropped, whose reads are then [`Error::SnapshotTooOld`](super::Error::SnapshotTooOld). The values
/// that the last commit superseded are always kept.
pub const DEFAULT_VERSION_BYTES: usize = 256 << 20;

/// Bytes that each superseded value counts besides its key and itself, against the limit of versions.
pub(crate) const VERSION_OVERHEAD: usize = 128;

/// Bytes of log after which a commit makes a checkpoint, unless the builder says otherwise.
pub const DEFAULT_CHECKPOINT_BYTES: u64 = 64 << 20;

/// Bytes after which a segment of the log ends. The batch that reaches this size is the last one of its segment. If the file
/// system has no space for another segment, the log continues in the same one.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

/// Bytes of which the reserved space of the log is a multiple. If the file system has less space, the exact size is reserved.
pub(crate) const LOG_STEP_BYTES: u64 = 4 << 20;

/// Reserved bytes of the log that no commit takes, because checkpoints and the next recovery append to the log, too. This is the
/// number with pages of 4 KiB. With larger pages it is larger in proportion. A recovery that repeats a longer log appends more, so
/// a share of that log ([`LOG_SLACK_SHARE`]) is reserved besides.
pub(crate) const LOG_SLACK_BYTES: u64 = 1 << 20;

/// A divisor. Recovery of random records of all sizes appends a fortieth of the bytes that it repeats.
pub(crate) const LOG_SLACK_SHARE: u64 = 8;

/// Bytes of the log that wait in memory in asynchronous durability. The commit that reaches this number writes them. Meanwhile,
/// others can append as many bytes again before they wait.
pub(crate) const LOG_BUFFER_BYTES: u64 = 4 << 20;

/// The longest duration that [`Store::latencies`](super::Store::latencies) tells from others. Longer ones count as this.
pub const LATENCY_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

/// Damages that a [`Verification`](super::Verification) lists. It counts all of them.
pub const MAX_DAMAGES: usize = 1000;

/// How often [`Store::update`](super::Store::update) runs a transaction beside others. After as many conflicts it runs
/// the transaction alone.
pub const UPDATE_ATTEMPTS: u32 = 8;

/// Writes to a tree whose leaves are brought into memory before a commit. With more, the first leaves could be evicted before
/// the commit writes to them.
pub(crate) const MAX_WARM_WRITES: usize = 1024;

/// Pages that a commit reserves for inner nodes of each tree that it writes.
pub(crate) const RESERVED_PER_TREE: u64 = 32;
