//! User space's view of the arena engine: formatting and growing arenas, reading snapshots straight from
//! the mapped memory, and consuming the log rings. Writing is the operators' business alone (`bpf/`).

mod expired;
mod format;
mod log;
mod memory;
mod merge;
mod snapshot;
mod verify;

pub(crate) use expired::look_at_slab;
pub(crate) use format::{Geometry, MIN_ARENA};
pub use log::LogReader;
pub(crate) use memory::Partition;
pub(crate) use snapshot::StateView;
pub use snapshot::{Snapshot, SnapshotItem};
pub use verify::Verified;
pub(crate) use verify::verify;
