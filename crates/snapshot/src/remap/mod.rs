//! Instant snapshots on a stock kernel, without KVM. Page tables are detached (section 4.2 of the paper), and the
//! kernel's own copy-on-write does the rest.
//!
//! A [`Region`] is a memory file mapped shared at one address: the owner's memory. A snapshot moves its page tables
//! to another address (`detach_tables`). It moves whole tables, which takes constant time. In their place it puts a
//! *private* mapping of the same file, which has no tables yet. From that moment on no thread writes to the file,
//! so the file is the snapshot. A write to a page makes the kernel copy it for the owner. Pages that were not
//! written are read from the file.
//! - A child that is forked afterwards inherits a private mapping. The kernel copies only the tables that were
//!   filled since that moment, even if other threads write meanwhile. After the fork, parent and child behave as
//!   after any `fork`. The detached tables are dropped (`worker`).
//! - A task of the same process reads the file through the detached tables.
//!
//! When all snapshots have ended, a thread *merges*: it writes the owner's copies into the file and puts the tables
//! back, some chunks at a time (`merge_back`). Threads that use these chunks wait meanwhile, by userfaultfd; other
//! threads do not.
//!
//! This differs from the paper in two ways. The owner's pages are copied and come back, whereas prioritized
//! copy-on-write leaves them in place (section 4.4). With this design, no write waits for code in user space. Pages
//! become shared again only by merging: a snapshot in a child that begins before the end of a merge copies the page
//! tables of the rest.
//!
//! A program that has devices write into its memory gets a region that stays private (`pinned`).
//!
//! There are two locks, taken in this order. *space* guards the search for free pages and changes of the accessible
//! part. *state* guards the state. A thread that holds the state's lock must not write to the region, which may be
//! the process's heap, and must not allocate.
//!
//! Invariants while the state is not locked:
//! - Chunks of `State::private` are mapped privately in the owner, all others shared. Only the merging thread
//!   writes to the file's part of private chunks, and only while no snapshot is active.
//! - In a pinned region all chunks are private, and stay private.
//! - A snapshot reads only pages that were in use when it began. They are private until it ends.
//! - Pages in `gone` were released while they were private. Only snapshots use the file's content of these pages.

mod children;
mod detach_tables;
mod freeze;
mod merge_back;
mod pinned;
mod region;
mod space;
mod worker;

pub use freeze::Frozen;
pub use region::Region;

/// Limit of active snapshots in the owner's process. Snapshots in children are not limited.
pub(crate) const TASKS: usize = 1;
/// Number of pages of a last-level page table. Such tables can be moved as a whole.
const CHUNK: usize = 512;
