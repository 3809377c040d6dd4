//! Page tables in the format of x86-64: entries, and mapping, protecting, walking and copying tables.
//!
//! [`PageTables`] is a handle on one set of four-level tables. Its operations work on tables that processors use at
//! the same time, and handlers may call them unless their documentation says otherwise. They take tables from a
//! [`TableSource`]; they do not allocate, take locks, panic, or make system calls.
//!
//! The rules that make this work:
//! * **Leaves** change by compare-and-swap ([`RawSlot`]). Neither the processor's accessed and dirty bits nor a
//!   concurrent change is lost. An entry with [`PteFlags::LOCK`] set belongs to the holder of the lock; operations
//!   on ranges stop there with [`PagingError::Locked`].
//! * **Tables** are filled first and then added by compare-and-swap. If two vCPUs add a table for the same entry,
//!   both use the one that was added first. Only the `free_*` functions remove tables. Their callers must have
//!   excluded all other users, and flushed. A walk therefore needs no lock.
//! * **Flushing is the caller's duty**. After a change that removes rights or a mapping, processors may still use
//!   cached translations until a [`shootdown`](crate::shootdown) has returned.
//!
//! ```
//! use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
//! use bedplate_ring0::paging::{PageSize, PageTables, PteFlags};
//!
//! let memory = HostMemory::map(2 << 20, Backing::Small)?;
//! let first = Frame::new(0x10_0000); // where the guest has this memory
//! let pool = FramePool::new(first, memory, 1)?;
//! // SAFETY: the pool lives as long as the tables, whose frames it hands out once.
//! let physical = unsafe { pool.table_memory() };
//! let mut frames = pool.cpu(0);
//! // SAFETY: no processor uses these tables.
//! let tables = unsafe { PageTables::create(&physical, &mut frames) }?;
//!
//! tables.map(0x7000, Frame::new(0x42), PageSize::Size4K, PteFlags::WRITABLE, &mut frames)?;
//! let found = tables.translate(0x7123).unwrap();
//! assert_eq!(found.physical_address(), 0x42123);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod copy;
mod directory;
mod error;
mod free;
#[cfg(test)]
mod model;
mod pte;
mod ranges;
mod slot;
mod table;
mod tables;
#[cfg(test)]
mod tests;

pub use address::{ADDRESS_LIMIT, PageSize, VirtRange};
pub use copy::Protect;
pub use directory::Directory;
pub use error::PagingError;
pub use free::Which;
pub use pte::{Pte, PteFlags};
pub use slot::{Locked, RawSlot, Slot};
pub use table::{LinearMemory, NoTables, PhysicalMemory, Table, TableSource};
pub use tables::{Leaf, PageTables, Translation};
