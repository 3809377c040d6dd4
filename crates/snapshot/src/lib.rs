//! Instant snapshots of memory (SNAPPY, section 4 of "Practical DB-OS Co-Design with Privileged Kernel Bypass").
//!
//! An in-memory database that needs a consistent image of itself usually forks. It waits while its page tables are
//! copied, and its writes take copy-on-write faults afterwards. This crate gives it the same view of a [`Memory`]
//! with less waiting and fewer costs. Threads or a child process see the memory as it was, while the database
//! continues to write.
//!
//! - [`Memory::snapshot`] returns a handle that threads of the process read, at another address than the memory's.
//! - [`Memory::spawn_in_child`] runs a task in a child, which sees the memory at its own address.
//! - [`Memory::spawn`] runs a task in a thread or in a child, depending on the engine.
//! - [`Memory::grow`] makes more of the [reserved](Builder::reserve) part accessible.
//! - [`Memory::into_heap`] makes the memory an allocator for hash maps, vectors and the like.
//! - [`Snapshot::changed_since`] lists the pages that changed since an earlier snapshot.
//!
//! ```no_run
//! # fn main() -> Result<(), bedplate_snapshot::Error> {
//! use bedplate_snapshot::Memory;
//! use std::sync::atomic::Ordering;
//!
//! let memory = Memory::builder(1 << 30).build()?;
//! memory.words()[0].store(1, Ordering::Relaxed);
//! let snapshot = memory.snapshot()?;
//! memory.words()[0].store(2, Ordering::Relaxed);
//! assert_eq!(snapshot.read(|view| view.words()[0])?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! These are the engines. The builder takes the best one that works on the machine ([`Choice`]).
//!
//! | | needs | what a snapshot waits for | the first write to a page after it |
//! |---|---|---|---|
//! | [`Kind::Remap`] | userfaultfd, Linux 5.14 | moving whole page tables, for any size alike | the kernel copies the page |
//! | [`Kind::Uffd`] | userfaultfd with write protection, Linux 5.19 | write-protecting what was written since the snapshot before | a thread copies the page for the snapshot |
//! | [`Kind::Fork`] | nothing | copying the page tables | the kernel copies the page |
//! | [`Kind::Ring0`] | ring 0 of a processor (`bedplate-ring0`), and to be asked for | an interrupt, or copying page tables without counting references | a handler in ring 0 copies the page for the snapshot |
//!
//! Every engine copies a page at most once per snapshot. `uffd` and `ring0` use prioritized copy-on-write (section
//! 4.4): the snapshot gets the copy, and the database's page keeps its place.

#![cfg(target_os = "linux")]

mod child;
pub mod engine;
mod error;
mod heap;
mod memory;
pub mod region;
pub mod remap;
#[cfg(target_arch = "x86_64")]
pub mod ring0;
mod snapshot;
pub mod statistics;
mod task;
pub mod uffd;
mod view;

pub use engine::{Choice, Kind};
pub use error::Error;
pub use heap::Heap;
pub use memory::{Builder, Memory};
pub use snapshot::{Bookmark, Changes, Snapshot};
pub use task::Task;
pub use view::View;

/// Bytes per page.
pub const PAGE: usize = 4096;
