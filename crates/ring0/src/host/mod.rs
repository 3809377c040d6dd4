//! The host part: code that runs in ring 3, on a stack of its own, whenever a processor stops executing guest code.
//!
//! It runs between two instructions of arbitrary code of the same thread. It must therefore not allocate, not touch
//! errno, and not take locks that such code may hold. It makes bare system calls.

pub mod call;
pub mod clone;
pub mod fatal;
pub mod native;
pub mod run;
pub mod signals;
pub mod system_call;
pub mod trap;
