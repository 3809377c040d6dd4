//! kerneldb: an ACID key-value database inside eBPF, with a Redis-protocol server answered in the
//! kernel (BPF-DB, SIGMOD 2025).

pub mod checkpoint;
mod database;
mod error;
pub mod recovery;
mod session;
pub mod store;
mod types;
pub mod wal;

pub use database::{Config, Database, EngineKind, LogReader, Snapshot, SnapshotItem};
pub use error::{Error, Result};
pub use session::Session;
pub use store::{Store, StoreConfig};
pub use types::{
    Durability, KEY_MAX, LogTxn, Op, SetCondition, SetOptions, TX_KEYS_MAX, VALUE_MAX, Value, Written,
};
