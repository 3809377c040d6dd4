//! Limits of the C interface. The limits of the store are in `bedplate_btree::store`.

/// Cursors of a transaction that are open at a time; one more is BP_STORE_ERROR_FULL. Each has up to [`AHEAD_BYTES`] and a
/// record.
pub(crate) const CURSORS: usize = 1024;

/// Records that a cursor reads ahead of the program, at most.
pub(crate) const AHEAD_RECORDS: usize = 64;

/// Bytes of records after which a cursor reads no further record ahead.
pub(crate) const AHEAD_BYTES: usize = 64 << 10;
