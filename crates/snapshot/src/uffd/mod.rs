//! Snapshots by write protection on a stock kernel, without KVM: prioritized copy-on-write (4.4) in user space.
//!
//! A [`Region`] is a memory file mapped shared at one address: the owner's memory. Its pages are either *armed*,
//! write-protected by userfaultfd, or not. A snapshot is a private mapping of the same file, in the same process
//! ([`snapshot`](crate::engine::Engine::snapshot)) or in a forked child ([`freeze`](crate::engine::Engine::freeze)).
//!
//! 1. When a snapshot begins, it shares every page with the owner. The engine arms all pages (`states`). Most of them are still
//!    armed, because only pages that were written since the snapshot before are not. They are armed in long runs.
//! 2. The owner's first write to a page wakes a thread, the *handler* (`threads`). The handler has the kernel copy the page in the
//!    mapping of every snapshot that still shares it (`target`), and only then lifts the protection (`serve`). The owner's
//!    page stays where it is.
//! 3. When a snapshot ends, its mapping goes. The pages that are armed stay armed.
//!
//! A region can keep track of changes (`changes`): the pages that were exposed between two snapshots are those that the
//! owner has changed.
//!
//! Nothing on the way of a fault allocates or takes a lock that an owner's thread can hold while it writes to the region.
//! All state is in mappings of its own (`mmap_box`), so the region may even be the process's heap.
//!
//! Locks, in their order: the *gate* (the snapshots there are; written while one begins or ends, read while a page's
//! state changes), then a chunk's *latch* (the states of 512 pages). Holders of either never write to the region.
//!
//! Invariants, between pages' changes of state:
//! - A page whose bit in `unarmed` is clear is write-protected, or was never mapped in this process.
//! - A page that is not armed shares nothing with any snapshot, unless it was free when the snapshot was taken: nothing
//!   is promised of free pages. A page that is armed shares nothing with snapshots of epochs up to its own `epoch`.

mod changes;
mod child;
#[cfg(test)]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the protocol's files are in it a second time, and not all is used"
)]
mod model;
mod page_map;
mod region;
mod serve;
mod snapshots;
mod states;
mod tables;
mod target;
mod threads;

pub use child::Frozen;
pub use region::Region;

/// How many snapshots can be active at once.
pub(crate) const SNAPSHOTS: usize = 16;
/// Pages that a latch covers: those of one last-level page table.
const CHUNK: usize = 512;
