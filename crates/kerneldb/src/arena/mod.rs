//! User space's view of the arena engine: formatting and growing arenas, reading snapshots straight from
//! the mapped memory, and consuming the log rings. Writing is the operators' business alone (`bpf/`).

mod format;
mod log;
mod memory;
mod merge;
mod readers;
mod reclaim;
mod size;
mod slab;
mod snapshot;
mod verify;

pub(crate) use format::Geometry;
pub use log::LogReader;
pub(crate) use memory::Partition;
pub use slab::HeapStats;
pub(crate) use snapshot::StateView;
pub use snapshot::{Snapshot, SnapshotItem};
pub use verify::Verified;
pub(crate) use verify::verify;
