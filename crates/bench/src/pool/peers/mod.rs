//! Embedded stores to compare with the B+tree. Each has the settings that its makers recommend for the task, and may
//! use no more memory than the pool:
//!
//! - [`lmdb`]: a B+tree in a mapped file. Its cache is the page cache, so its process is limited (see `budget`).
//! - [`rocksdb`]: an LSM tree, from the distribution's library, with direct I/O, so that its block cache and its
//!   memtables are all the memory it has.
//! - [`redb`]: a B+tree in Rust. It has a cache of its own, but reads through the page cache; its process is limited, too.

pub mod lmdb;
pub mod redb;
pub mod rocksdb;

/// The settings with which a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Memory for the cache and all buffers.
    pub budget: u64,
    /// A commit returns when it is on disk.
    pub durable: bool,
}

#[cfg(test)]
mod tests;
