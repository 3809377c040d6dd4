//! The protocol of frames, page-table entries and stale translations, independent of the machine.

mod mapping;
#[cfg(test)]
mod model;

pub use crate::protocol::{atomics, frame_table, page_state};
pub use mapping::{Machine, abandon, claim, keep_version, map, refresh};
