//! The host part: what runs in ring 3, on a stack of its own, whenever a processor stops executing guest code.
//!
//! It runs between two instructions of arbitrary code of the same thread, so it must not allocate, must not take
//! locks that such code may hold, and must not touch errno. It makes system calls bare.

pub mod call;
pub mod clone;
pub mod fatal;
pub mod native;
pub mod run;
pub mod signals;
pub mod system_call;
pub mod trap;
