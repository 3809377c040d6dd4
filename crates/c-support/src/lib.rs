//! Code that the C interfaces (`scan-c`, `snapshot-c`, `store-c`) share.
//!
//! - [`table`]: handles, which are numbers that replace pointers;
//! - [`input`] and [`output`]: structures that may be longer or shorter than those of this version;
//! - [`last`]: the last error of a thread, and the handling of panics, which must not reach C code.
//!
//! Each library has its own copy of this crate's statics.

#![cfg(target_os = "linux")]

pub mod input;
pub mod last;
pub mod output;
pub mod table;
