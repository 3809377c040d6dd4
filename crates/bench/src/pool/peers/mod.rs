//! The embedded stores that one would use instead of the B+tree, each as its makers recommend for its task, and told to
//! use no more memory than the pool has:
//!
//! - [`lmdb`]: a B+tree in a mapped file. Its cache is the page cache, so its process is limited (see `budget`).
//! - [`rocksdb`]: an LSM tree, from the distribution's library, with direct I/O, so that its block cache and its
//!   memtables are all the memory it has.
//! - [`redb`]: a B+tree in Rust. It has a cache of its own, but reads through the page cache; its process is limited, too.

pub mod lmdb;
pub mod redb;
pub mod rocksdb;

/// What a store is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Memory for the cache and all that is buffered.
    pub budget: u64,
    /// A commit returns when it is on disk.
    pub durable: bool,
}

#[cfg(test)]
mod tests;
