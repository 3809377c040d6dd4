//! Bounds on the options of a benchmark.

/// Largest number of writing threads of a benchmark; more is an error.
pub const THREADS_MAX: usize = 64;
