//! A B+tree on Bedplate's buffer pool: a sorted map from bytes to bytes. The map may be larger than memory, and many
//! threads can use it at once.
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
//! A reader writes to no shared memory (optimistic lock coupling). It reads a page first and checks afterwards that the
//! page did not change meanwhile. A writer holds one leaf. It also holds the parent only when nodes split or merge. A
//! node stores the common prefix of its keys once. The first four bytes after the prefix are in the slot, so a search
//! finds them without access to the record.
//!
//! - `node`: one page: its layout, searches in it and changes of it;
//! - `latch`: pages as operations read and hold them; `descend`: descents, and the latch order;
//! - `read`, `read_many`, `write`, `scan`, `bulk`: the operations; `split`, `merge`: the node changes that they cause;
//! - `overflow`: values that are too long for a leaf; `journal`: the log records of a tree;
//! - `check`: checks of a tree while writers change it; `verify`: checks of a tree that no thread changes;
//!   `page_set`: the pages that a check has visited.
//!
//! [`store`] has transactions over several trees, snapshots, and its own log.
//!
//! A tree is as durable as its pool. `docs/btree.md` describes the state after a crash, and the duties of a log.

mod bulk;
mod check;
mod descend;
mod error;
mod journal;
mod latch;
mod merge;
mod node;
mod overflow;
mod page_set;
mod read;
mod read_ahead;
mod read_many;
mod redistribute;
mod scan;
mod split;
pub mod store;
mod tree;
mod verify;
mod write;

pub use error::{Error, Result};
pub use journal::{Journal, redo};
#[cfg(fuzzing)]
pub use node::arbitrary::arbitrary_page;
pub use node::{LONGEST_KEY, MAX_KEY, MAX_RECORD, max_key, max_record};
pub use scan::{Owned, Range};
#[cfg(fuzzing)]
pub use store::arbitrary_dump;
pub use tree::Tree;
pub use verify::Shape;

/// The maximum length of a value, in bytes. A value that is longer than [`max_record`] together with its key is stored
/// in an overflow chain. A read of such a value allocates.
pub const MAX_VALUE: usize = 16 << 20;
