//! Limits of the server, and what happens at each of them.

/// Highest [`crate::server::ServerConfig::max_clients`]; more are a configuration error. A connection beyond the
/// configured number gets an error and is closed.
pub const CLIENTS_MAX: u32 = 65_536;

/// Arguments of one request; more are a protocol error, after which the connection is closed.
pub const REQUEST_ARGUMENTS_MAX: i64 = 1 << 20;

/// Default of `proto-max-bulk-len`: the longest argument in bytes. A longer one is a protocol error.
pub const BULK_BYTES_MAX: i64 = 512 << 20;

/// Longest argument in bytes that is stored. The bytes of a longer one are dropped as they arrive; commands refuse it.
pub const KEPT_BULK_BYTES_MAX: usize = 128 << 10;

/// Arguments of one request before authentication; more are a protocol error.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: i64 = 10;

/// Longest argument in bytes before authentication; a longer one is a protocol error.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;

/// Longest line in bytes of an inline command or a length header; a longer one is a protocol error.
pub const LINE_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(KEPT_BULK_BYTES_MAX > bedplate_kerneldb::VALUE_MAX);
