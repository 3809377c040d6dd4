//! Limits of a store. An operation beyond a limit returns the named error and changes nothing.

/// Maximum number of bytes in the name of a tree. A longer or an empty name is [`Error::TreeName`](super::Error::TreeName).
pub const MAX_TREE_NAME: usize = 255;

/// Maximum number of trees of a store, without the catalog. One more is [`Error::TooManyTrees`](super::Error::TooManyTrees).
pub const MAX_TREES: usize = 4096;

/// Maximum number of puts and removals of a transaction. One more is
/// [`Error::TransactionTooLarge`](super::Error::TransactionTooLarge). A second write of a key replaces the first.
pub const MAX_TRANSACTION_WRITES: usize = 1 << 20;

/// Maximum number of bytes of the keys and values that a transaction writes, and of the values that they replace in the trees.
/// Beyond it, the result is [`Error::TransactionTooLarge`](super::Error::TransactionTooLarge).
pub const MAX_TRANSACTION_BYTES: usize = 64 << 20;

/// Maximum number of bytes of the keys and the range bounds that a write transaction remembers for its validation. Beyond it, the
/// result is [`Error::TransactionTooLarge`](super::Error::TransactionTooLarge).
pub const MAX_READ_BYTES: usize = 64 << 20;

/// Bytes that each remembered key or range counts in addition to its own, against [`MAX_READ_BYTES`].
pub(crate) const READ_OVERHEAD: usize = 64;

/// Number of the last ranges of a write transaction among which a new range is merged with one that it touches.
pub(crate) const RECENT_RANGES: usize = 16;

/// Maximum number of bytes of superseded values that are kept for snapshots, unless the builder says otherwise. Beyond it, the
/// values of the oldest snapshots are dropped. Reads of those snapshots then fail with
/// [`Error::SnapshotTooOld`](super::Error::SnapshotTooOld). The values that the last commit superseded are always kept.
pub const DEFAULT_VERSION_BYTES: usize = 256 << 20;

/// Bytes that each superseded value counts in addition to its key and itself, against the limit of versions.
pub(crate) const VERSION_OVERHEAD: usize = 128;

/// Bytes of log after which a commit makes a checkpoint, unless the builder says otherwise.
pub const DEFAULT_CHECKPOINT_BYTES: u64 = 64 << 20;

/// Bytes after which a segment of the log ends. The batch that reaches this size is the last one of its segment. If the file
/// system has no space for another segment, the log continues in the same one.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

/// Bytes of which the reserved space of the log is a multiple. If the file system has less space, the exact size is reserved.
pub(crate) const LOG_STEP_BYTES: u64 = 4 << 20;

/// Reserved bytes of the log that no commit uses, because checkpoints and the next recovery also append to the log. This is the
/// number with pages of 4 KiB. It grows in proportion to the page size. A recovery that repeats a longer log appends more, so a
/// share of that log ([`LOG_SLACK_SHARE`]) is reserved in addition.
pub(crate) const LOG_SLACK_BYTES: u64 = 1 << 20;

/// A divisor. Recovery of random records of all sizes appends a fortieth of the bytes that it repeats.
pub(crate) const LOG_SLACK_SHARE: u64 = 8;

/// Bytes of the log that wait in memory in asynchronous durability. The commit that reaches this number writes them. Meanwhile,
/// others can append as many bytes again before they wait.
pub(crate) const LOG_BUFFER_BYTES: u64 = 4 << 20;

/// The longest duration that [`Store::latencies`](super::Store::latencies) distinguishes. Longer ones count as this.
pub const LATENCY_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

/// Maximum number of damages that a [`Verification`](super::Verification) lists. It counts all of them.
pub const MAX_DAMAGES: usize = 1000;

/// Number of times that [`Store::update`](super::Store::update) runs a transaction concurrently with others. After as many
/// conflicts, it runs the transaction alone.
pub const UPDATE_ATTEMPTS: u32 = 8;

/// Maximum number of writes to a tree whose leaves are read into memory before a commit. With more, the first leaves could be
/// evicted before the commit writes to them.
pub(crate) const MAX_WARM_WRITES: usize = 1024;

/// Pages that a commit reserves for inner nodes of each tree that it writes.
pub(crate) const RESERVED_PER_TREE: u64 = 32;
