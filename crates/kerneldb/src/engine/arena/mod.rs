//! User space's view of the arena engine: formatting and growing arenas, reading snapshots straight from the mapped
//! memory, and consuming the log rings. In recovery, when no program works on the arenas, it also fills them.
//! Otherwise only the operators (`bpf/`) write.

mod candidates;
#[cfg(test)]
mod chain_tests;
mod expired;
mod format;
mod hints;
mod load;
#[cfg(test)]
mod lock_tests;
mod log;
mod memory;
mod readers;
mod reclaim;
mod scan;
mod size;
mod slab;
mod store;
mod verify;

use format::Geometry;
pub(crate) use load::{LoadKey, Loaded, Loader};
pub(super) use memory::Partition;
pub use slab::HeapStats;
pub(crate) use store::ArenaStore;
