//! Page tables: x86-64 entries, and mapping, protecting, walking, copying over them.
//!
//! [`PageTables`] is a handle on one set of four-level tables. All of it works on tables that processors are
//! using at the same moment, from handlers, too: nothing here allocates (tables come from a [`TableSource`]),
//! locks, panics, or makes a system call.
//!
//! Rules that make this work:
//! * **Leaves** change by compare-and-swap ([`RawSlot`]), so that neither the processor's accessed and dirty bits
//!   nor somebody else's change is lost. An entry whose [`PteFlags::LOCK`] is set is its holder's; operations on
//!   ranges stop there with [`PagingError::Locked`].
//! * **Tables** are added by compare-and-swap, filled before; two vCPUs that add the same one agree on one. They
//!   are taken away by the `free_*` functions only, whose callers have excluded everybody else (and flushed). So a
//!   walk needs no lock.
//! * **Flushing is the caller's**: after a change that takes rights or a mapping away, processors may go on using
//!   what they have cached until a [`shootdown`](crate::shootdown) has returned.
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
