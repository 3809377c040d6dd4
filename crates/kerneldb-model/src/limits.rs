//! The bounds of the model.

/// Most processors of a model.
pub const CPUS: usize = 4;
/// Sessions of a model, and I/O buffers: one for each thread.
pub const SESSIONS: usize = 8;
/// Most stores that a processor's buffer holds; the oldest leaves for the next one.
pub const STORES: usize = 24;
/// Bytes of the arena's address space.
pub const ARENA_BYTES: u64 = 16 << 20;
/// Bytes of a processor's log ring.
pub const RING_BYTES: u32 = 16 << 10;
/// First value of the coarse clock, in nanoseconds. Not 0.
pub const FIRST_NS: u64 = 1_000_000;
/// Bytes of a task's stack.
pub const STACK_BYTES: usize = 256 << 10;
