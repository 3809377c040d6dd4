//! A B+tree on Bedplate's buffer pool: a sorted map from bytes to bytes that may be larger than memory, and that many
//! threads use at once.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use bedplate_btree::Tree;
//! use bedplate_bufpool::Pool;
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("data");
//! let pool = Pool::builder(path).memory(16 << 20).capacity(1 << 30).open()?;
//! let tree = Tree::open_or_create(&pool, 0)?;
//! tree.upsert(b"one", b"1")?;
//! tree.upsert(b"two", b"2")?;
//! let length = tree.get(b"two", |value| value.len())?;
//! assert_eq!(length, Some(1));
//!
//! let mut range = tree.range("a".."z");
//! while let Some((key, value)) = range.try_next()? {
//!     println!("{key:?}: {value:?}");
//! }
//! drop(range);
//! pool.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Readers write to no shared memory (optimistic lock coupling): they read what they find, and find out afterwards whether
//! it was true. Writers hold one leaf, and a parent besides only when nodes split or merge. Keys are stored without what
//! the keys of a page have in common, and the first four bytes of the rest are found without looking at records.
//!
//! - `node`: one page, its layout, searching and changing it;
//! - `latch`: pages as they are read and held; `handle`: descending, and the order of latches;
//! - `read`, `write`, `scan`, `bulk`: the operations; `split`, `merge`: what they do to nodes;
//! - `overflow`: values too long for a page; `journal`: what a log is told; `shape`: checks.
//!
//! A tree is as durable as its pool: what a crash leaves behind, and what a log has to do about it, is in
//! `docs/btree.md`.

mod ahead;
mod balance;
mod bulk;
mod error;
mod handle;
mod journal;
mod latch;
mod merge;
mod node;
mod overflow;
mod read;
mod scan;
mod shape;
mod split;
mod tree;
mod write;

pub use error::{Error, Result};
pub use journal::{Journal, redo};
#[cfg(fuzzing)]
pub use node::arbitrary::arbitrary_page;
pub use node::{MAX_KEY, MAX_RECORD};
pub use scan::{Owned, Range};
pub use shape::Shape;
pub use tree::Tree;

/// The longest value. Those that are longer than [`MAX_RECORD`] together with their key are stored in pages of their own,
/// and reading them allocates.
pub const MAX_VALUE: usize = 16 << 20;
