//! The C interface of snapshot. `include/bedplate/snapshot.h` is generated from here.
//!
//! It adds no way of taking snapshots. It detects at run time the errors that Rust's types rule out: wrong handles with a
//! [table](bedplate_c_support::table), and blocks that are freed twice and invalid bookmarks with a [`seal`].

#![cfg(target_os = "linux")]
#![allow(non_camel_case_types)]

mod code;
mod heap;
mod memory;
mod seal;
mod snapshot;
mod task;
#[cfg(test)]
mod tests;

use std::ffi::c_char;

pub use code::{bp_snapshot_code, bp_snapshot_error, bp_snapshot_error_number, bp_snapshot_strerror};
pub use heap::*;
pub use memory::*;
pub use snapshot::*;
pub use task::*;

/// The library's version, as in "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
