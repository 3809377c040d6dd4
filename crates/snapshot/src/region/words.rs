//! The atomic word that sets of pages are made of. The model checker has its own in its place.

pub use std::sync::atomic::AtomicU64;
