//! A buffer pool that finds a page without a lock, and evicts one without a TLB shootdown.
//!
//! A storage engine keeps its data in pages, and only some of them fit into memory. A [`Pool`] reads a page when a thread
//! accesses it, writes the pages that were changed, and evicts the pages that have not been used for longest. An array of frame
//! numbers says where a page is, so an eviction changes one word ([`Kind::Array`]).
//!
//! Other engines have the processor translate (TABBY, section 5 of "Practical DB-OS Co-Design with Privileged Kernel
//! Bypass"): the storage is as large in the address space as on the disk. Their cost is at eviction, when the kernel makes all
//! processors flush an address. [`Kind::Stock`] pays it once for a whole batch, and `Kind::Ring0` not at all. The engine
//! `Kind::Ring0` exists with the cargo feature `ring0` only. The feature `bench` adds parts that only benchmarks use: the
//! baseline engine `Kind::Vmcache`, and functions that switch off or measure parts of a pool.
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
//! Several pools can be open in a process. A thread holds a page exclusively ([`Exclusive`]), or several threads hold it shared
//! ([`Shared`]). A thread can also read it optimistically, without holding it ([`Optimistic`]), as for the inner nodes of a tree.
//!
//! A pool alone survives a close, but not a crash, because pages are written whenever a frame is needed. An engine whose commits
//! must survive a crash gives the pool its log ([`Log`]).

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
