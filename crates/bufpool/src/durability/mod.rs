//! Durability: the order in which pages are written, so that they survive a crash, and recovery after one.
//!
//! - [`page_store`]: writes pages, after everything that must be durable before them;
//! - [`write_back`]: copies dirty pages out of the pool and writes the copies;
//! - [`background_writer`]: the same, while the caller does other things;
//! - [`double_write`]: copies of pages, so that a crash cannot tear the only one;
//! - [`group_fsync`]: one fsync for all threads that wait for one;
//! - [`pages_since_sync`]: which pages may not be durable yet;
//! - [`superblock`]: the pool's own record;
//! - [`page_allocator`]: which pages are in use;
//! - [`last_lsn`]: the number that pages carry without a record of their own;
//! - [`log`]: the part of the user's write-ahead log that the pool needs;
//! - [`recovery`]: the functions that the user calls after a crash.

pub(crate) mod background_writer;
pub(crate) mod double_write;
pub(crate) mod group_fsync;
pub(crate) mod last_lsn;
pub(crate) mod log;
pub(crate) mod page_allocator;
pub(crate) mod page_store;
pub(crate) mod pages_since_sync;
pub(crate) mod recovery;
pub(crate) mod superblock;
pub(crate) mod write_back;
