//! The C interface of the store of `btree`; `include/bedplate/store.h` is generated from here.
//!
//! It adds no mechanism of its own. It finds out at run time the mistakes that Rust's types rule out: wrong handles, by a
//! [table](bedplate_c_support::table); two threads in one transaction, by the same; and calls that would wait for themselves.
//!
//! - `store`: opening and closing, and the functions on a whole store; `trees`: trees by name;
//! - `transaction`: transactions, and reading and writing in them; `update`: transactions that are run again after a conflict;
//!   `cursor`: positions among the records of a transaction;
//! - `input`: arguments; `code`: results.
//!
//! A transaction owns a share of its store, and its cursors are positions that borrow nothing. So no lifetime of Rust's is
//! extended, and the only `unsafe` code is about the pointers that programs pass.
//!
//! Locks, in their order: the commit mutex of the store if [`bp_store_update`] holds it, `Trees::changing`, the locks of the
//! store; then the leaves: a transaction's slot in the table, and below it the list of `Trees` and the store's own locks. A thread
//! takes a transaction out of its slot before it commits it, so it never waits for the commit mutex inside a slot.

#![cfg(target_os = "linux")]
#![allow(non_camel_case_types)]

mod code;
mod cursor;
mod input;
mod limits;
mod store;
#[cfg(test)]
mod tests;
mod transaction;
mod trees;
mod update;

use std::ffi::c_char;

pub use code::{bp_store_code, bp_store_error, bp_store_error_number, bp_store_strerror};
pub use cursor::*;
pub use input::{bp_store_bytes, bp_store_range};
pub use store::*;
pub use transaction::*;
pub use trees::*;
pub use update::*;

/// The library's version, as in "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
