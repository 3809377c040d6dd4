//! Every limit of the database that is not a property of one file format: its name, its value, and what happens at
//! it. Limits that the eBPF programs need are defined in `bpf/include/bedplate/layout.h`.

use std::time::Duration;

use crate::layout;

/// Longest key in bytes; the shortest is 1. Other keys are [`crate::Error::TooLarge`].
pub const KEY_MAX: usize = layout::KDB_KEY_MAX as usize;

/// Longest value in bytes; the shortest is 0. Longer values are [`crate::Error::TooLarge`].
pub const VALUE_MAX: usize = layout::KDB_VAL_MAX as usize;

/// Index entries in one hash chain, 256. Reads and writes of present keys go on at the limit. An operation that would
/// add another key to the chain ends in [`crate::Error::ChainFull`]. Random keys do not come near the limit: a
/// partition has at most four keys for each chain on average.
pub const CHAIN_ENTRIES_MAX: usize = layout::KDB_CHAIN_MAX as usize;

/// Distinct keys that one transaction can read-lock or write. One more is [`crate::Error::TooManyLocks`], after which
/// the transaction can only be rolled back.
pub const TX_KEYS_MAX: usize = layout::KDB_TX_LOCKS as usize;

/// Snapshots and read-only transactions that are active at once. One more is [`crate::Error::Busy`].
pub const SNAPSHOTS_MAX: usize = layout::KDB_SNAPSHOTS as usize;

/// Highest [`crate::Config::partitions`]; more are [`crate::Error::Config`].
pub const PARTITIONS_MAX: u32 = layout::KDB_MAX_PARTITIONS;

/// Highest memory limit of one partition in bytes; more is [`crate::Error::Config`].
pub const PARTITION_BYTES_MAX: u64 = 1 << 32;

/// Least memory of one partition in bytes; [`crate::Error::Config`] for a database with less for each.
pub const PARTITION_BYTES_MIN: u64 = 16 << 20;

/// Highest [`crate::Config::max_sessions`]; more are [`crate::Error::Config`]. A session beyond the configured number
/// is [`crate::Error::NoSession`].
pub const SESSIONS_MAX: u32 = 65_536;

/// Highest [`crate::Config::versions`]; more are [`crate::Error::Config`]. A write of a key whose versions are all
/// visible to snapshots is [`crate::Error::NoVersion`].
pub const VERSIONS_MAX: u32 = layout::KDB_MAX_VERSIONS;

/// The same for the hash-map engine.
pub const HASH_MAP_VERSIONS_MAX: u32 = 8;

/// Lowest and highest [`crate::Config::key_bytes`] of the hash-map engine; others are [`crate::Error::Config`].
pub const HASH_MAP_KEY_BYTES: std::ops::RangeInclusive<u32> = 16..=layout::KDB_KEY_BUF;

/// Smallest log ring in bytes, which holds the longest value; smaller ones are [`crate::Error::Config`].
pub const LOG_RING_BYTES_MIN: u32 = 256 << 10;

/// Bytes of a log ring, per CPU and partition, if the configuration of a store with a log has none.
pub const LOG_RING_BYTES_DEFAULT: u32 = 16 << 20;

/// Largest log ring in bytes; larger ones are [`crate::Error::Config`]. A write or commit that finds its ring full is
/// [`crate::Error::WalFull`], which has no effect and leaves an open transaction open: the caller may repeat the call.
pub const LOG_RING_BYTES_MAX: u32 = 1 << 30;

/// Processors of the machine; a machine with more is [`crate::Error::Config`].
pub const CPUS_MAX: u32 = layout::KDB_MAX_CPUS;

/// Operations in one [`crate::Trace`]; one more panics.
pub const TRACE_OPS: usize = layout::KDB_TRACE_OPS as usize;

/// Arguments of one [`crate::Procedure::run`]; more are [`crate::Error::Config`].
pub const PROCEDURE_ARGUMENTS_MAX: usize = 10;

/// Arguments of one call of a procedure by name ([`crate::Session::call`]); more are [`crate::Error::TooLarge`].
pub const CALL_ARGUMENTS_MAX: usize = layout::KDB_CALL_ARGUMENTS as usize;

/// Bytes of all arguments of one such call together; more are [`crate::Error::TooLarge`].
pub const CALL_BYTES_MAX: usize = layout::KDB_CALL_BYTES as usize;

/// Operators of one call on keys of other partitions than that of its first argument.
pub const CALL_VISITS_MAX: usize = layout::KDB_VISITS_MAX as usize;

/// Procedures that can be called by name. A library that would add more is [`crate::Error::Library`].
pub const PROCEDURES_MAX: usize = layout::KDB_PROCEDURE_SLOTS as usize;

/// Bytes of a procedure's name. A library with a longer one is [`crate::Error::Library`].
pub const PROCEDURE_NAME_MAX: usize = layout::KDB_PROCEDURE_NAME as usize - 1;

/// Handlers of all libraries. A library that would add more is [`crate::Error::Library`].
pub const HANDLERS_MAX: usize = 256;

/// Events that one handler can be attached to; one more is [`crate::Error::Library`]. A timer's handler has one.
pub const HANDLER_TARGETS_MAX: usize = 64;

/// Time from the end of a timer's run to the next one; another one is [`crate::Error::Library`].
pub const TIMER_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);

/// Times that a handler runs for one event whose transaction meets conflicts. Then the event counts as failed.
pub const HANDLER_ATTEMPTS: u32 = layout::KDB_HANDLER_ATTEMPTS;

/// Bytes of a library, which has an object for each engine; a larger one is [`crate::Error::Library`].
pub const LIBRARY_BYTES_MAX: usize = 16 << 20;

/// Bytes of the name of a library; a longer or an empty name is [`crate::Error::Library`].
pub const LIBRARY_NAME_MAX: usize = 64;

/// Highest effort of the active expiry ([`crate::Database::set_expire_effort`]); a higher one is
/// [`crate::Error::Config`]. 0 switches active expiry off.
pub const EXPIRE_EFFORT_MAX: u32 = 10;

const _: () = assert!(LOG_RING_BYTES_MIN as usize > VALUE_MAX + KEY_MAX + size_of::<layout::kdb_rec_long>());
/// Bytes of an arena for each bucket of its index. A bucket takes 8 bytes, whatever the keys take. A full arena of the
/// smallest keys has about four keys in a bucket.
pub(crate) const BYTES_PER_BUCKET: u64 = 512;
/// Free slabs are scarce below this share of all slabs. User space then begins to reclaim memory.
pub(crate) const SCARCE_SLABS_SHARE: u64 = 16;
/// Number of times that a write which finds no memory reclaims some and tries again, before it fails.
pub(crate) const RECLAIM_ATTEMPTS: u32 = 3;
/// The background thread takes at most one part in this many of its time for the search for scarce memory.
pub(crate) const RECLAIM_TIME_SHARE: u32 = 10;
/// Attempts of a write that finds no memory, after which no more keys are evicted for it.
pub(crate) const EVICTION_ATTEMPTS: u32 = 16;
/// A write that finds no memory waits at most this long for keys to be evicted.
pub(crate) const EVICTION_WAIT: Duration = Duration::from_millis(250);
/// A write that finds no memory is repeated for at most this long while keys can be evicted.
pub(crate) const EVICTION_PATIENCE: Duration = Duration::from_secs(2);
/// With a policy of eviction, keys are evicted when less than this share of a partition is free. It is more than
/// [`SCARCE_SLABS_SHARE`] leaves free, so the values of sparse slabs have room to move together.
pub(crate) const EVICTION_FREE_SHARE: u64 = 12;
/// Highest factor of the usage of keys ([`crate::Database::set_usage_factor`]); a higher one is [`crate::Error::Config`].
pub const USAGE_FACTOR_MAX: u32 = 1_000_000;
/// The factor unless one is set.
pub(crate) const USAGE_FACTOR_DEFAULT: u32 = 10;
/// Slabs of a partition that are being emptied at once. Further slabs wait for their turn.
pub(crate) const MAX_EVACUATING_SLABS: usize = 256;

/// Bytes that the writes of one transaction may put into the log; [`crate::Error::TransactionTooLarge`] beyond it.
///
/// Each write counts with the lengths of its key and value and [`TX_WRITE_BYTES`]. Rewrites of a key in the same
/// transaction count as well, with or without a log.
pub const TX_BYTES_MAX: usize = layout::KDB_TX_BYTES as usize;

/// Bytes that a write counts in addition to its key and value; see [`TX_BYTES_MAX`].
pub const TX_WRITE_BYTES: usize = layout::KDB_TX_WRITE_BYTES as usize;

/// Default age at which a transaction is rolled back: [`crate::Timeouts::transaction_ms`].
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(600);

/// Default time without an operator after which a transaction is rolled back: [`crate::Timeouts::idle_ms`].
pub const TRANSACTION_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Default age from which the snapshot of a read-only transaction gives way to a writer that needs one of its
/// versions: [`crate::Timeouts::snapshot_grace_ms`].
pub const SNAPSHOT_GRACE: Duration = Duration::from_secs(3);

/// The same for the snapshots of checkpoints, dumps and scans: [`crate::Timeouts::scan_grace_ms`].
pub const SCAN_GRACE: Duration = Duration::from_secs(900);

/// Number of searches of the contexts per limit, for transactions that exceed it. The interval is at least
/// [`REAP_INTERVAL_MIN`] and at most [`REAP_INTERVAL_MAX`]. A transaction is rolled back at most this fraction of the
/// limit late.
pub(crate) const REAP_CHECKS_PER_LIMIT: u32 = 8;
/// See [`REAP_CHECKS_PER_LIMIT`].
pub(crate) const REAP_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// See [`REAP_CHECKS_PER_LIMIT`].
pub(crate) const REAP_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The clock of the limits advances by no more than this at a time: while the thread that advances it stands still,
/// transactions do not age.
pub(crate) const CLOCK_STEP_MAX: Duration = Duration::from_millis(250);

/// A frame of the log is closed once it has this many bytes.
pub(crate) const FRAME_BYTES: usize = 1 << 20;

/// Longest payload of a frame. The writer refuses a transaction that would exceed it, before any byte of the
/// transaction is in the log. The reader treats a longer payload as damage.
pub(crate) const FRAME_PAYLOAD_MAX: usize = 1 << 30;

// A frame has less than FRAME_BYTES before its last transaction. In a frame, the changes of a transaction take less
// than the bytes counted for them (asserted where the format is defined), and one byte ends the transaction.
const _: () = assert!(FRAME_BYTES + TX_BYTES_MAX < FRAME_PAYLOAD_MAX);
// 128 keys of 64 KiB fit into one transaction.
const _: () = assert!(TX_KEYS_MAX * (KEY_MAX + VALUE_MAX + TX_WRITE_BYTES) <= TX_BYTES_MAX);
// The counters of a frame cannot overflow: a transaction has at least one byte, a change at least three.
const _: () = assert!(FRAME_PAYLOAD_MAX < u32::MAX as usize);

/// Recovery that finds no memory within a partition's limit, although it has emptied sparse slabs, may take this share
/// of the limit in addition, within [`RESERVE_BYTES`]. Beyond that it ends in [`crate::Error::NoMemory`]. Clients may
/// fill the additional memory, too, so a database that is filled to the last byte between many starts needs a little
/// more at each.
pub(crate) const RESERVE_SHARE: u64 = 16;
/// See [`RESERVE_SHARE`].
pub(crate) const RESERVE_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=64 << 20;
/// Number of times that a recovered change without memory has sparse slabs emptied before it takes the reserve.
pub(crate) const RECOVERY_ROOM_ATTEMPTS: u32 = 16;

/// Most threads that write recovered keys into memory. More would wait for the thread that decodes.
pub(crate) const RECOVERY_WORKERS_MAX: usize = 8;
/// Changes that recovery hands to such a thread at a time.
pub(crate) const RECOVERY_BATCH_CHANGES: usize = 1024;
/// Bytes of keys and values that it hands over at a time, unless a single change has more.
pub(crate) const RECOVERY_BATCH_BYTES: usize = 128 << 10;

/// The log's reader looks for abandoned transactions once it holds this many bytes of uncommitted writes, and at most
/// every [`ABANDONED_INTERVAL`]. The writes that it holds beyond those of open transactions stay below this.
pub(crate) const UNCOMMITTED_CHECK_BYTES: usize = 1 << 20;
/// See [`UNCOMMITTED_CHECK_BYTES`].
pub(crate) const ABANDONED_INTERVAL: Duration = Duration::from_millis(50);
/// Overwritten copies of one transaction's writes are removed when the copies exceed this plus twice their size after the
/// last removal.
pub(crate) const REWRITES_BYTES: usize = 64 << 10;

/// Timestamps that can be in the log rings at once: the next one that the log's reader expects, and those after it. The
/// reader treats a record with a later timestamp as a broken sequence and panics.
pub(crate) const MAX_AHEAD: u64 = 1 << 26;
