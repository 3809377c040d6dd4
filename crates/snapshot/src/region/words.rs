//! The atomic word of sets of pages. The model checker replaces it by its own.

pub use std::sync::atomic::AtomicU64;
