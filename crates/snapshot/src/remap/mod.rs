//! Instant snapshots on a stock kernel, without KVM: page tables are detached (4.2), and the kernel's own copy-on-write
//! does the rest.
//!
//! A [`Region`] is a memory file mapped shared at one address: the owner's memory. A snapshot moves its page tables to
//! another address, as whole tables, so that it takes as long for any size (`detach_tables`), and puts a *private* mapping of
//! the same file in their place, which has no tables yet. From that moment on nobody writes to the file: it is the snapshot.
//! A write to a page makes the kernel copy it for the owner; what was not written is read from the file.
//! - A child that is forked then inherits a private mapping, of which the kernel copies only the tables that were filled
//!   since that moment, also when other threads write meanwhile. So whatever parent and child do afterwards is an ordinary
//!   `fork`'s matter. The tables that were detached are dropped (`worker`).
//! - A task of the same process reads the file by the detached tables.
//!
//! When all snapshots have ended, a thread *merges*: it writes the owner's copies into the file and puts the tables back,
//! some chunks at a time (`merge_back`). Whoever uses these chunks waits meanwhile, by userfaultfd; nobody else does.
//!
//! What differs from the paper: the owner's pages are copied and come back, where prioritized copy-on-write leaves them in
//! place (4.4). That keeps everything out of user space that a write waits for. And what is shared is found again by
//! merging: a snapshot in a child that begins before that is over copies the page tables of the rest.
//!
//! A program that has devices write into its memory gets a region that stays private (`pinned`).
//!
//! Two locks, in this order: *space*, for the search of free pages and for changes of what can be accessed; and the *state*. A
//! thread that holds the state's lock does not write to the region, which may be the process's heap, and does not allocate.
//!
//! Invariants, when the state is not locked:
//! - Chunks of `State::private` are mapped privately in the owner, all others shared. Nobody writes to the file's part of
//!   private ones but the thread that merges, and that only while no snapshot is active.
//! - In a pinned region all chunks are private, and stay so.
//! - A snapshot that began at some moment reads only what was in use then, which is private until it ends.
//! - Pages in `gone` were given back while they were private: what the file has of them is nobody's but snapshots'.

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

/// How many snapshots there can be at once in the owner's process. Of children there can be any number.
pub(crate) const TASKS: usize = 1;
/// Pages of a last-level page table, which is what can be moved as a whole.
const CHUNK: usize = 512;
