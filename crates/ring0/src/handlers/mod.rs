//! Handlers of exceptions, interrupts and system calls that a program can set instead of the default.
//!
//! Handlers run in ring 0 on stacks of their own, with interrupts off, between two instructions of arbitrary code.
//! A handler must therefore not take locks that such code may hold, for example the allocator's. It must not panic,
//! because a panic ends the process. It may touch memory: a page fault in a handler is handled like any other, up
//! to three deep.

pub mod huge;
pub mod ranges;
pub mod segv;
pub mod signal;
pub mod syscall;
pub mod trap;

pub use huge::map_huge;
pub use ranges::{MOST_RANGES, claim_page_faults, release_page_faults};
pub use segv::{IsOurs, adopt_segv, set_segv_action, take_in};
pub use signal::{SignalHandler, set_signal_handler};
pub use syscall::{
    Answer, MOST_LAYERS, SyscallFrame, SyscallHandler, add_syscall_layer, set_syscall_handler,
};
pub use trap::{Outcome, TrapHandler, set_handler, set_page_fault_handler};
