//! Durability across restarts: the write-ahead log, checkpoints, and recovery from both.
//!
//! [`store`] is the database on a data directory and uses all of the others. [`wal`] writes and replays the
//! log, [`checkpoint`] writes and reads checkpoints, [`recovery`] fills a database from both of them,
//! `rebuild` gives a store another configuration, for which `image` keeps the data of a store that has no directory, `transfer` copies data
//! between databases and files, `datadir` owns the directory, and `disk` is the interface through which all of them reach files.

pub mod checkpoint;
mod datadir;
pub(crate) mod disk;
mod image;
mod libraries;
mod rebuild;
pub mod recovery;
mod replace;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transfer;
pub mod wal;

pub use image::{Image, available_memory};
pub use rebuild::RebuildError;
pub use replace::replace_file;
pub use store::{Store, StoreConfig};
