//! The protocol of snapshots (section 4.1 and 4.4 of the paper), without a machine: who may change which entry when,
//! which page is whose, and when a page can be given back.
//!
//! * [`Latch`]: writes to pages share it, taking and ending snapshots has it alone.
//! * [`Epochs`]: a number for each snapshot, and which are active. Changed under the latch.
//! * [`write_by_main`], [`write_by_snapshot`]: what a write to a protected page does.
//! * [`Limbo`]: pages that only active snapshots may still use, until none can (P1).
//!
//! All of it works on the atomic words of [`bedplate_ring0::word`], so that the model checker runs what ring 0 runs. It
//! neither allocates nor blocks, except [`Limbo::reclaim`], which is not for handlers.
//!
//! Order of the latch and the locks of entries: the latch first. Snapshots' entries are not locked but compared and
//! swapped.

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
