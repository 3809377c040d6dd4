//! User space's view of the arena engine: formatting and growing arenas, reading snapshots straight from
//! the mapped memory, and consuming the log rings. Writing is the operators' business alone (`bpf/`).

#[cfg(test)]
mod chain_tests;
mod expired;
mod format;
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
pub(super) use memory::Partition;
pub use slab::HeapStats;
pub(crate) use store::ArenaStore;
