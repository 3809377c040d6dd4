//! What tables of epochs are made of. The model checker has its own in their place.

pub(super) use std::sync::atomic::AtomicU32;

pub(super) use crate::region::Table;
