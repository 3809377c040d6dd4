//! User space's view of the arena engine: formatting and growing arenas, reading snapshots straight from
//! the mapped memory, and consuming the log rings. Writing is the operators' business alone (`bpf/`).

mod format;
mod log;
mod memory;
mod scan;
mod store;
mod verify;

use format::{Geometry, MIN_ARENA};
use memory::Partition;
pub(crate) use store::ArenaStore;
