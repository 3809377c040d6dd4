//! The C interface of scan. `include/bedplate/scan.h` is generated from here.
//!
//! The interface has no mechanism of its own except a [table](bedplate_c_support::table). At run time the table detects the
//! mistakes that Rust's types rule out. These are wrong handles, pages that are returned twice or to another channel, and two
//! threads in one channel.

#![cfg(target_os = "linux")]
#![allow(non_camel_case_types)]

mod channel;
mod code;
mod input;
mod pool;
mod residency;
mod service;
#[cfg(test)]
mod tests;

use std::ffi::c_char;

pub use channel::*;
pub use code::{bp_scan_code, bp_scan_error, bp_scan_error_number, bp_scan_strerror};
pub use input::{bp_scan_range, bp_scan_source};
pub use pool::*;
pub use residency::*;
pub use service::*;

/// The library's version, as in "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
