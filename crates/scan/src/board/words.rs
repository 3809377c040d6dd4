//! The atomic types of a board. The model checker compiles the protocol with its own versions of them.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
