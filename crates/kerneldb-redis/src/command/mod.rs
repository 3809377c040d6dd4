//! The commands and the state machine of a connection.
//!
//! [`Connection`] turns request bytes into reply bytes. It runs commands through [`Operators`] (a session of the
//! database, or a model) and [`Services`] (the server around it), both with static dispatch. It never
//! blocks, but returns the step that the caller has to take ([`Next`]).
//!
//! Every command that touches several keys, or reads and writes, is one transaction. Reads of several keys
//! use a snapshot. A command that meets a transient error (a lock, for example) is retried for `lock-timeout`
//! milliseconds. While the log is behind (a full ring, or memory that its writer still needs), it is retried
//! without a time limit. Inside an interactive transaction the client must handle transient errors itself.
//!
//! Differences to Redis: keys have 1 to 255 bytes, values at most 65,536. All values are strings, and there is
//! one database. A transaction reads with locks, or writes, at most 128 keys.

mod acl;
mod admin;
mod bitfield;
mod bits;
mod calls;
mod carried;
mod client;
mod clients;
mod config;
mod connection;
mod counter;
pub(crate) mod dump;
mod errors;
mod exec;
mod expire;
mod functions;
mod generic;
mod glob;
mod info;
mod introspect;
mod keyspace;
mod latency;
mod lcs;
mod monitor;
mod multi;
mod observed;
mod operators;
mod procedure;
mod redact;
mod request;
mod script_run;
mod scripting;
mod services;
mod session;
mod settings;
mod shutdown;
mod slowlog;
mod spec;
mod string;
mod table;
#[cfg(test)]
mod tests;
mod transaction;
mod users;

use exec::Fail;

pub use carried::CarriedConnection;
pub use clients::{Client, Clients, Pauses, Peer};
pub use connection::{Connection, Next};
pub use glob::glob_match;
pub use latency::Latency;
pub use monitor::Monitors;
pub use operators::Operators;
pub use services::{
    AdminTask, AdminTaskResult, AdminTaskTicket, Counters, KernelActivity, Keyspace, Memory, ServerState,
    Services,
};
pub use settings::{DatabaseOptions, Settings, Startup};
pub use shutdown::Shutdown;
pub use slowlog::SlowLog;

/// Bytes for humans, as INFO prints them.
fn format_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match UNITS.iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{:.2}{unit}", bytes as f64 / *size as f64),
        None => format!("{bytes}B"),
    }
}
