//! What makes a database survive a restart: the write-ahead log, checkpoints, and recovery from both.
//!
//! [`store`] is the database on a data directory and uses all of the others. [`wal`] writes and replays the
//! log, [`checkpoint`] writes and reads checkpoints, [`recovery`] fills a database from both of them,
//! `transfer` copies data between databases and files, `replayer` applies logged transactions, `datadir`
//! owns the directory, and `disk` is the interface through which all of them reach files.

pub mod checkpoint;
mod datadir;
pub(crate) mod disk;
pub mod recovery;
mod replayer;
pub mod store;
mod transfer;
pub mod wal;

pub use replayer::Replayer;
pub use store::{Store, StoreConfig};
