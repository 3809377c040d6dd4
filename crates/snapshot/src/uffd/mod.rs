//! Snapshots by write protection on a stock kernel, without KVM: prioritized copy-on-write (section 4.4) in user
//! space.
//!
//! A [`Region`] is a memory file mapped shared at one address: the owner's memory. Its pages are either *armed*,
//! that is, write-protected by userfaultfd, or not. A snapshot is a private mapping of the same file, in the same
//! process ([`snapshot`](crate::engine::Engine::snapshot)) or in a forked child
//! ([`freeze`](crate::engine::Engine::freeze)).
//!
//! 1. When a snapshot begins, it shares every page with the owner. The engine arms all pages, in long runs
//!    (`states`). Most pages are still armed, because only pages that were written since the previous snapshot are
//!    not.
//! 2. The owner's first write to a page wakes a thread, the *handler* (`threads`). The handler makes the kernel
//!    copy the page in the mapping of every snapshot that still shares it (`target`). Only then does it remove the
//!    protection (`serve`). The owner's page keeps its place.
//! 3. When a snapshot ends, its mapping is removed. Armed pages stay armed.
//!
//! A region can track changes (`changes`): the pages that the owner changed between two snapshots are among those
//! that were exposed between them.
//!
//! Code that serves a fault neither allocates nor takes a lock that an owner's thread can hold while it writes to
//! the region. All state is in mappings of its own (`mmap_box`), so the region may even be the process's heap.
//!
//! The locks, in their order: the *gate*, then a chunk's *latch*. The gate guards the set of snapshots; it is held
//! for writing while a snapshot begins or ends, and for reading while a page's state changes. A latch guards the
//! states of 512 pages. Holders of either must not write to the region.
//!
//! Invariants, between changes of pages' states:
//! - A page whose bit in `unarmed` is clear is write-protected, or was never mapped in this process.
//! - A page that is not armed shares nothing with any snapshot, unless it was free when the snapshot was taken.
//!   Snapshots make no promise about free pages. An armed page shares nothing with snapshots of epochs up to its
//!   own `epoch`.

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

/// Limit of active snapshots.
pub(crate) const SNAPSHOTS: usize = 16;
/// Number of pages that a latch covers: those of one last-level page table.
const CHUNK: usize = 512;
