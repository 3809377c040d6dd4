//! The types of tables of epochs. The model checker replaces them by its own.

pub(super) use std::sync::atomic::AtomicU32;

pub(super) use crate::region::MmapArray;
