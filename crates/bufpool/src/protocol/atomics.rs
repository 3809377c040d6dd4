//! The atomics and locks of the protocol. The model replaces them with loom's.

pub use std::sync::MutexGuard;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
