//! Who may use a page, and who may take its memory: the part of the pool in which threads meet.
//!
//! - [`word`]: the state of one page;
//! - [`slots`]: the clock, and which page has which slot;
//! - [`sweep`]: eviction's and write-back's steps on words and slots.
//!
//! These files know nothing of memory or storage. They are checked by loom with small models of both (`model`).

pub mod atomics;
#[cfg(test)]
mod model;
pub mod slots;
pub mod sweep;
pub mod word;
