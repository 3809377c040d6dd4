//! The atomic words that a board is made of. The model checker has its own in their place.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
