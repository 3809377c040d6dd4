//! kerneldb: an ACID key-value database inside eBPF (BPF-DB, SIGMOD 2025).
//!
//! The crate `bedplate-kerneldb-redis` is a server on it; such programs reach the data through
//! [`attach`].

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "kerneldb's programs rely on x86-64's order of loads and stores; other processors may reorder them and lose data"
);

pub mod attach;
mod bpf;
mod config;
mod database;
mod durability;
mod engine;
mod error;
mod eviction;
mod expirer;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod layout;
mod library_file;
pub mod limits;
mod random;
pub mod sdk;
mod session;
mod stats;
mod timeouts;
mod toolchain;
mod types;

pub use config::{Config, EngineKind};
pub use database::Database;
#[cfg(any(test, feature = "testing"))]
pub use durability::testing;
pub use durability::{
    Image, RebuildError, Store, StoreConfig, available_memory, checkpoint, recovery, replace_file, store, wal,
};
pub use engine::{
    Direction, DumpMethod, EvictionPolicy, EvictionStats, ExpiryStats, HandlerCounts, HandlerKind,
    HandlerTarget, HeapStats, LogReader, Snapshot, SnapshotItem, SuspendedHandler, Verified,
};
pub use error::{Error, Result};
pub use eviction::KeyUsage;
pub use limits::{KEY_MAX, TRACE_OPS, TX_KEYS_MAX, VALUE_MAX};
pub use session::{
    ACCOUNTS, Application, FoundProcedure, HandlerInfo, Procedure, ProcedureInfo, Replayer, Reply, Session,
    TRACE_KEY, Trace, TraceOutcome, VOTER, VOTER_HASHMAP, VOTER_PROCEDURES, VOTER_STEPS, read_library,
};
pub use stats::Stats;
pub use timeouts::Timeouts;
pub use types::{Durability, LogTxn, Op, SetCondition, SetOptions, Value, Written};
