//! kerneldb: an ACID key-value database inside eBPF, with a Redis-protocol server answered in the
//! kernel (BPF-DB, SIGMOD 2025).

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "kerneldb's programs rely on x86-64's order of loads and stores; other processors may reorder them and lose data"
);

mod application;
mod arena;
mod bpf;
pub mod checkpoint;
pub mod command;
mod config;
mod database;
mod datadir;
mod disk;
mod error;
mod expiry;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod hashmap;
mod layout;
pub mod limits;
mod memory_wait;
mod procedure;
pub mod recovery;
mod replayer;
pub mod resp;
pub mod server;
mod session;
mod stats;
pub mod store;
mod trace;
mod transfer;
mod types;
pub mod wal;

pub use application::{Application, VOTER};
pub use arena::{LogReader, Snapshot, SnapshotItem, Verified};
pub use config::{Config, EngineKind};
pub use database::Database;
pub use error::{Error, Result};
pub use expiry::ExpiryStats;
pub use hashmap::DumpMethod;
pub use procedure::Procedure;
pub use replayer::Replayer;
pub use session::Session;
pub use stats::Stats;
pub use store::{Store, StoreConfig};
pub use trace::{TRACE_KEY, TRACE_OPS, Trace, TraceOutcome};
pub use types::{
    Durability, KEY_MAX, LogTxn, Op, SetCondition, SetOptions, TX_KEYS_MAX, VALUE_MAX, Value, Written,
};
