//! Bounds on what a benchmark may be asked for.

/// The most writing threads that a benchmark may be asked for; more is an error.
pub const THREADS_MAX: usize = 64;
