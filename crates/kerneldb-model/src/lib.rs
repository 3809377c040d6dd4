//! A model checker for the database engine: interleavings of the engine's own C code.
//!
//! The headers below `crates/kerneldb/bpf/engine` are compiled for this process. The compiler's thread
//! instrumentation calls [`runtime`] before every access to memory, and instead of every atomic instruction.
//! There the `shuttle` library decides which thread runs next. A test therefore explores interleavings of
//! exactly the code that runs in the kernel, access by access.
//!
//! The model covers:
//!  - Processors. Threads of one processor preempt each other, and interrupts run to their end, except while a
//!    thread has turned interrupts off.
//!  - The memory model of x86 (TSO): a store waits in its processor's buffer for a while, which other processors
//!    do not see. A locked instruction empties the buffer. [`Stores::Sequential`] turns the buffers off.
//!  - All accesses to the arena, to the database's state and to the sessions' transaction words.
//!
//! The model does not cover the optimizations of the eBPF compiler (the same optimizer compiles for another
//! machine here), weaker memory models than TSO, more processors than a test starts, and the verifier's early
//! end of loops.
//!
//! [`history`] records the results of the operators, and checks them; [`invariant`] checks the resulting memory.

pub mod engine;
pub mod history;
pub mod invariant;
pub mod limits;
pub mod mutants;
pub mod runtime;
pub mod schedule;
pub mod world;

mod memory;
mod random;
mod store_buffer;
pub mod workload;

pub use engine::Engine;
pub use world::{Setup, Stores};

/// The layout of the shared memory, generated from `bedplate/layout.h`.
#[allow(
    missing_docs,
    unsafe_op_in_unsafe_fn,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
pub mod layout {
    include!(concat!(env!("OUT_DIR"), "/layout.rs"));
}
