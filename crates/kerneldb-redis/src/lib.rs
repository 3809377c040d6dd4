//! A Redis-protocol server on a kerneldb database: most commands are answered in the kernel, by eBPF programs on the
//! connections' sockets (BPF-DB, SIGMOD 2025, section 5.2).
//!
//! [`resp`] is the wire protocol, [`command`] executes commands, `script` runs Lua, and [`server`] is the server: its event loop and its
//! eBPF programs (`bpf/`).

/// Version of Redis whose commands and replies these are.
pub const REDIS_VERSION: &str = "7.0.15";

pub mod command;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod limits;
mod rdb;
pub mod resp;
mod script;
pub mod server;
mod subsequence;
