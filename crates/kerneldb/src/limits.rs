//! Every limit of the database that is not a property of one file format: its name, its value, and what happens at
//! it. Limits that the eBPF programs need are defined in `bpf/include/bedplate/layout.h`.

use crate::layout;

/// Longest key in bytes; the shortest is 1. Other keys are [`crate::Error::TooLarge`].
pub const KEY_MAX: usize = layout::KDB_KEY_MAX as usize;

/// Longest value in bytes; the shortest is 0. Longer values are [`crate::Error::TooLarge`].
pub const VALUE_MAX: usize = layout::KDB_VAL_MAX as usize;

/// Distinct keys that one transaction can read-lock or write. One more is [`crate::Error::TooManyLocks`], after which
/// the transaction can only be rolled back.
pub const TX_KEYS_MAX: usize = layout::KDB_TX_LOCKS as usize;

/// Snapshots and read-only transactions that are active at once. One more is [`crate::Error::Busy`].
pub const SNAPSHOTS_MAX: usize = layout::KDB_SNAPSHOTS as usize;

/// Highest [`crate::Config::partitions`]; more are [`crate::Error::Config`].
pub const PARTITIONS_MAX: u32 = layout::KDB_MAX_PARTITIONS;

/// Highest memory limit of one partition in bytes; more is [`crate::Error::Config`].
pub const PARTITION_BYTES_MAX: u64 = 1 << 32;

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

/// Largest log ring in bytes; larger ones are [`crate::Error::Config`]. A write that finds its ring full is
/// [`crate::Error::WalFull`].
pub const LOG_RING_BYTES_MAX: u32 = 1 << 30;

/// Processors of the machine; a machine with more is [`crate::Error::Config`].
pub const CPUS_MAX: u32 = layout::KDB_MAX_CPUS;

/// Operations in one [`crate::Trace`]; one more panics.
pub const TRACE_OPS: usize = layout::KDB_TRACE_OPS as usize;

/// Arguments of one [`crate::Procedure::run`]; more are [`crate::Error::Config`].
pub const PROCEDURE_ARGUMENTS_MAX: usize = 10;

const _: () = assert!(LOG_RING_BYTES_MIN as usize > VALUE_MAX + KEY_MAX + size_of::<layout::kdb_rec_long>());
