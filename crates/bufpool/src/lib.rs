//! A buffer pool that finds a page without a lock, and evicts one without a TLB shootdown.
//!
//! A storage engine keeps its data in pages, of which memory has room for some. A [`Pool`] reads a page when it is asked
//! for, writes the pages that were changed, and evicts pages that have not been used for longest. An array of frame
//! numbers says where a page is, so an eviction changes one word ([`Kind::Array`]).
//!
//! Other engines have the processor translate (TABBY, section 5 of "Practical DB-OS Co-Design with Privileged Kernel
//! Bypass"): the storage is as large in the address space as on the disk. They pay at eviction, when the kernel makes all
//! processors forget an address: [`Kind::Stock`] once for a whole batch, `Kind::Ring0` not at all. The engine
//! `Kind::Ring0` exists with the cargo feature `ring0` only. The feature `bench` has what only benchmarks use: the baseline
//! engine `Kind::Vmcache`, and functions that switch off or measure parts of a pool.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use bedplate_bufpool::Pool;
//!
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("data");
//! let pool = Pool::builder(&file).memory(1 << 20).capacity(1 << 30).open()?;
//!
//! let mut page = pool.allocate()?;
//! page.write(0, b"hello");
//! pool.set_root(0, page.page().0);
//! let id = page.page();
//! drop(page);
//!
//! // A reader that writes nothing to shared memory: what it read counts when nobody disturbed it.
//! assert_eq!(&pool.optimistic_read(id, |page| page.read::<5>(0))?, b"hello");
//!
//! pool.close()?;
//! drop(pool);
//! let pool = Pool::builder(&file).open()?;
//! let page = pool.pin_shared(bedplate_bufpool::PageId(pool.root(0)))?;
//! assert_eq!(&page[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Several pools can be open in a process. A page is held by one guard exclusively ([`Exclusive`]), by some shared
//! ([`Shared`]), or by nobody and read optimistically ([`Optimistic`]); the last is what a tree's inner nodes are for.
//!
//! A pool alone survives being closed, not a crash: pages are written whenever room is needed. An engine that wants
//! its commits to survive gives the pool its log ([`Log`]).

#![cfg(target_os = "linux")]

mod access;
mod buffer;
mod builder;
mod durability;
mod engine;
mod error;
mod images;
mod page;
mod page_size;
mod pool;
mod protocol;
mod region;
mod replacement;
mod statistics;
pub mod storage;

pub use access::guard::{Exclusive, Optimistic, Shared};
pub use access::payload::{Payload, PayloadMut};
pub use builder::{Builder, Choice, probe};
pub use durability::double_write::TornPages;
pub use durability::log::Log;
pub use durability::recovery::Redo;
pub use durability::superblock::ROOTS;
pub use engine::Kind;
#[cfg(all(feature = "ring0", feature = "bench", target_arch = "x86_64"))]
#[doc(hidden)]
pub use engine::ring0::Parts;
pub use error::{Error, Restart, Result};
pub use page::{Damage, HEADER, MAX_PAGES, PAGE, PAYLOAD, PageId};
pub use page_size::PageSize;
pub use pool::Pool;
pub use statistics::Statistics;
