//! The protocol of snapshots (sections 4.1 and 4.4 of the paper), independent of the machine. It says which code
//! may change which entry, which pages belong to which snapshot, and when a page can be given back.
//!
//! * [`Latch`]: writes to pages hold it for reading; taking and ending a snapshot hold it for writing.
//! * [`Epochs`]: a number for each snapshot, and which snapshots are active. They change with the latch held for
//!   writing.
//! * [`write_by_main`], [`write_by_snapshot`]: a write to a protected page.
//! * [`Limbo`]: pages that only active snapshots may still use, until none can (condition P1).
//!
//! Everything works on the atomic words of [`bedplate_ring0::word`], so the model checker runs the same code as
//! ring 0. No function allocates or blocks, except [`Limbo::reclaim`], which handlers must not call.
//!
//! The latch comes before the locks of entries. Entries of snapshots are not locked but changed by
//! compare-and-swap.

mod epochs;
mod latch;
mod limbo;
#[cfg(test)]
mod model;
mod page;
#[cfg(test)]
mod tests;

pub use epochs::{Epochs, MOST};
pub use latch::{Latch, Writing};
pub use limbo::{Limbo, Waiting};
pub use page::{Outcome, World, write_by_main, write_by_snapshot};
