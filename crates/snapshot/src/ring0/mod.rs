//! The `ring0` engine: SNAPPY (section 4 of the paper) on a privileged process.
//!
//! The memory is a range of addresses that only ring 0 can use (`space`). Main's page tables map it to frames, which
//! are this process's memory at other addresses (`frames`) and never change. A snapshot is another set of tables
//! (`tables`), with a thread in ring 0 that uses them (`task`). The handler of page faults (`fault`) makes copies
//! of pages for snapshots; `protocol` says when. Threads in the background (`background`) copy tables ahead of time,
//! and give pages back. `calls` lets Linux see what ring 0 sees, and `native` brings threads to ring 0 that touch
//! the memory elsewhere: so nobody ever sees the wrong memory without noticing.
//!
//! Programs that fork have their snapshots in children (`arena`, `forked`), which are processes of their own in ring 0
//! (`child`) and read the memory by the snapshot's tables; `reaper` notices when they end.
//!
//! Locks, in this order: the list of tables (`tables::TablePool`), the latch of the protocol, the locks of entries. The
//! first is never held while the second is waited for.

mod arena;
mod background;
mod calls;
mod child;
mod control;
mod fault;
mod forked;
mod frames;
mod native;
mod protocol;
mod reaper;
mod registry;
mod shapes;
mod space;
mod spawn;
mod staging;
mod tables;
mod task;

pub use arena::{ChildStatistics, Region};
pub use bedplate_ring0::handlers::set_segv_action;
pub use forked::Frozen;

pub(crate) use background::Background;
pub(crate) use frames::process;
pub(crate) use space::Space;
pub(crate) use spawn::spawn;

const _: () = assert!(crate::engine::RING0_SNAPSHOTS == protocol::MOST);
