//! kerneldb: an ACID key-value database inside eBPF (BPF-DB, SIGMOD 2025).
//!
//! The crate `bedplate-kerneldb-redis` is a server on it; [`attach`] is how such programs reach the data.

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "kerneldb's programs rely on x86-64's order of loads and stores; other processors may reorder them and lose data"
);

mod application;
mod arena;
pub mod attach;
mod bpf;
mod config;
mod database;
mod durability;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod hashmap;
mod layout;
mod memory_wait;
mod procedure;
mod session;
mod stats;
mod trace;
mod types;

pub use application::{Application, VOTER};
pub use arena::{LogReader, Snapshot, SnapshotItem, Verified};
pub use config::{Config, EngineKind};
pub use database::Database;
pub use durability::{Replayer, Store, StoreConfig, checkpoint, recovery, store, wal};
pub use error::{Error, Result};
pub use hashmap::DumpMethod;
pub use procedure::Procedure;
pub use session::Session;
pub use stats::Stats;
pub use trace::{TRACE_KEY, TRACE_OPS, Trace, TraceOutcome};
pub use types::{
    Durability, KEY_MAX, LogTxn, Op, SetCondition, SetOptions, TX_KEYS_MAX, VALUE_MAX, Value, Written,
};
