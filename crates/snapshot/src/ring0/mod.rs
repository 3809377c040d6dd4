//! The `ring0` engine: SNAPPY (section 4 of the paper) on a privileged process.
//!
//! The memory is a range of addresses that only ring 0 can use (`space`). Main's page tables map it to frames that
//! never change. These frames are memory of this process at other addresses (`frames`). A snapshot is another set
//! of tables (`tables`), which a thread in ring 0 uses (`task`). The page-fault handler (`fault`) copies pages for
//! snapshots; `protocol` says when. Background threads (`background`) copy tables ahead of time, and give back
//! pages. `calls` makes Linux see the same memory as ring 0. `native` makes threads enter ring 0 when they touch
//! the memory in ring 3. No thread can therefore see the wrong memory unnoticed.
//!
//! Programs that fork have their snapshots in children (`arena`, `forked`). These are separate processes in ring 0
//! (`child`) and read the memory through the snapshot's tables. `reaper` notices when they end.
//!
//! The locks, in this order: the list of tables (`tables::TablePool`), the latch of the protocol, the locks of
//! entries. A thread must not hold the first lock while it waits for the second.

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
