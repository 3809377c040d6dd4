//! Snapshots by write protection on a stock kernel, without KVM: prioritized copy-on-write (4.4) in user space.
//!
//! A [`Region`] is a memfd mapped shared at one address: the owner's memory. Its pages are either *armed*,
//! write-protected by userfaultfd, or not. A snapshot is a private mapping of the same memfd, in the same process
//! ([`snapshot`](crate::region::Region::snapshot)) or in a forked child ([`freeze`](crate::region::Region::freeze)); at
//! first it shares every page with the owner. For the moment in which it is made all pages are armed. The first write to
//! one wakes a handler thread, which has the kernel break the sharing *in the snapshot's mapping*, and only then lifts the
//! protection: the owner's page stays where it is and none of its translations but that one is touched.
//!
//! What makes it fast:
//! - Arming ahead. Outside of snapshots cold pages are armed in the background, so that a snapshot arms fewer (`heat`);
//!   the largest numbers are armed by several threads (`team`).
//! - Handlers run on the writers' processors (`crew`).
//! - Writers that walk through memory have several pages copied at a time (`window`), and so have those that write all over
//!   a part of it (`density`).
//! - Nothing on the way of a fault allocates or takes a lock that an owner's thread can hold while it writes
//!   to the region: all state is in mappings of its own (`mmap_box`), so the region may even be the process's heap.
//!
//! A region can keep track of changes (`changes`): the pages that were exposed between two snapshots are those that the
//! owner may have changed. Then no page is exposed because many around it are written (`density`).
//!
//! Locks, in their order: the *gate* (the snapshots there are; written while one is made or ends, read while a page's
//! state changes), then a chunk's *latch* (the states of 512 pages). Holders of either never write to the region.
//!
//! Invariants, between pages' changes of state:
//! - A page whose bit in `unarmed` is clear is write-protected, or was never mapped in this process.
//! - A page that is not armed shares nothing with any snapshot, unless it was free when the snapshot was taken: nothing
//!   is promised of free pages. A page that is armed shares nothing with snapshots of epochs up to its own `epoch`.

mod apart;
mod bindings;
mod changes;
mod child;
mod crew;
mod density;
mod heat;
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
mod tasks;
mod team;
mod threads;
mod window;
mod worker;

pub use child::Frozen;
pub use region::Region;

use crate::region::descriptor;

/// How many snapshots can be active at once.
const SNAPSHOTS: usize = 16;
/// Pages that a latch covers: those of one last-level page table.
const CHUNK: usize = 512;
