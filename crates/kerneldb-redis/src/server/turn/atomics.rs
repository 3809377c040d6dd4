//! The atomic words of the turn. The model has loom's in their place.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
