//! The protocol of frames, entries and old translations, without a machine.

mod mapping;
#[cfg(test)]
mod model;

pub use crate::protocol::{atomics, slots, word};
pub use mapping::{Machine, abandon, claim, keep_version, map, refresh};
