//! A buffer pool whose page numbers are addresses (TABBY, section 5 of "Practical DB-OS Co-Design with Privileged Kernel
//! Bypass").
//!
//! A storage engine keeps its data in pages, of which memory has room for some. A [`Pool`] brings pages in when they are
//! asked for, writes what was changed, and takes memory from pages that have not been used for longest. Where a page is
//! in memory is not looked up in a table: the storage is as large in the address space as on the disk, and the
//! processor translates. The price is paid at eviction, when the kernel makes all processors forget the address. This
//! crate pays it once for a whole batch.
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
//! page[..5].copy_from_slice(b"hello");
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

mod arrivals;
mod buffer;
mod builder;
mod credit;
mod doublewrite;
mod engine;
mod error;
mod evict;
mod fault;
mod guard;
mod home;
mod log;
mod meta;
mod page;
mod pin;
mod pool;
mod prefetch;
mod protocol;
mod recover;
mod region;
mod space;
mod statistics;
pub mod storage;
mod unsynced;
mod wait;
mod writeback;

pub use builder::{Builder, Choice, probe};
pub use doublewrite::TornPages;
pub use engine::Kind;
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub use engine::ring0::Parts;
pub use error::{Error, Restart, Result};
pub use guard::{Exclusive, Optimistic, Shared};
pub use log::Log;
pub use meta::ROOTS;
pub use page::{Damage, HEADER, MAX_PAGES, PAGE, PAYLOAD, PageId};
pub use pool::Pool;
pub use recover::Redo;
pub use statistics::Statistics;
