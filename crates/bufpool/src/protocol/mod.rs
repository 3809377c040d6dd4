//! The protocol between threads: which thread may use a page, and which thread may take its frame.
//!
//! - [`page_state`]: the state of one page;
//! - [`frame_table`]: the clock, and the page of each frame;
//! - [`sweep`]: the steps of eviction and write-back on states and frames;
//! - [`words`]: the bytes of a page, which threads read and write at the same time.
//!
//! These modules do not depend on memory or storage. Loom checks them with small models of both (`model`).

pub mod atomics;
pub mod counted_mutex;
pub mod frame_table;
#[cfg(test)]
mod model;
pub mod page_state;
pub mod sweep;
pub mod words;
#[cfg(test)]
mod words_tests;
