//! The shared memory layout, generated from `bpf/include/bedplate/layout.h` and `calls.h`, and the number of all headers.

#![allow(missing_docs, non_camel_case_types, dead_code)]
#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks, reason = "generated code")]
#![allow(clippy::all, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/layout.rs"));

/// [`KDB_MARKER`] as the unsigned number that it is in C.
pub const MARKER: u64 = KDB_MARKER as u64;

/// [`KDB_ABI`] likewise: the number of the headers.
pub const ABI: u64 = KDB_ABI as u64;

/// `KDB_SNAPSHOT_SCAN` and `KDB_SNAPSHOT_REVOKED`, which bindgen does not evaluate.
pub const SNAPSHOT_SCAN: u64 = 1 << 62;
/// See [`SNAPSHOT_SCAN`].
pub const SNAPSHOT_REVOKED: u64 = 1 << 63;
