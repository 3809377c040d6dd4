//! Code that the C interfaces (`scan-c`, `snapshot-c`, `store-c`) share.
//!
//! - [`table`]: handles, which are numbers in the place of pointers;
//! - [`input`] and [`output`]: structures that may be longer or shorter than this version knows them;
//! - [`last`]: a thread's last error, and panics that must not get out.
//!
//! Each library has its own copy of this crate's statics.

#![cfg(target_os = "linux")]

pub mod input;
pub mod last;
pub mod output;
pub mod table;
