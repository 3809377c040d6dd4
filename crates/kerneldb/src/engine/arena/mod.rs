//! User space's view of the arena engine: formatting and growing arenas, reading snapshots straight from
//! the mapped memory, and consuming the log rings. Writing is the operators' business alone (`bpf/`).

#[cfg(test)]
mod chain_tests;
mod expired;
mod format;
mod log;
mod memory;
mod scan;
mod store;
mod verify;

use format::{Geometry, MIN_ARENA};
pub(super) use memory::Partition;
pub(crate) use store::ArenaStore;
