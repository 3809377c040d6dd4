//! Tests that C programs cannot do: panics, constants of the header, and names that C cannot write.

use std::ffi::c_int;

use bedplate_btree::store::{MAX_TRANSACTION_BYTES, MAX_TRANSACTION_WRITES, MAX_TREE_NAME, MAX_TREES, Store};
use bedplate_btree::{MAX_KEY, MAX_VALUE};

use crate::code::{answer, bp_store_code};
use crate::limits::{AHEAD_RECORDS, CURSORS};
use crate::*;

/// The number of a constant of the header.
fn constant(name: &str) -> usize {
    let header = include_str!("../include/bedplate/store.h");
    let line = header.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name)).unwrap();
    let digits = line.trim_matches(|c: char| !c.is_ascii_digit());
    let digits = digits.trim_start_matches("32_C(");
    let number = match digits.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    number.unwrap_or_else(|error| panic!("{name} is {line}: {error}"))
}

#[test]
fn the_limits_of_the_header_are_those_of_the_store() {
    assert_eq!(constant("BP_STORE_KEY_MAX "), MAX_KEY);
    assert_eq!(constant("BP_STORE_VALUE_MAX "), MAX_VALUE);
    assert_eq!(constant("BP_STORE_TREE_NAME_MAX "), MAX_TREE_NAME);
    assert_eq!(constant("BP_STORE_TREES_MAX "), MAX_TREES);
    assert_eq!(constant("BP_STORE_TRANSACTION_WRITES_MAX "), MAX_TRANSACTION_WRITES);
    assert_eq!(constant("BP_STORE_TRANSACTION_BYTES_MAX "), MAX_TRANSACTION_BYTES);
    assert_eq!(constant("BP_STORE_CURSORS_MAX "), CURSORS);
    assert_eq!(constant("BP_STORE_AHEAD_MAX "), AHEAD_RECORDS);
}

fn opened(folder: &std::path::Path) -> bp_store {
    let options = bp_store_options {
        size: size_of::<bp_store_options>(),
        memory_bytes: 1 << 20,
        capacity_bytes: 64 << 20,
        version_bytes: 0,
        checkpoint_bytes: 0,
        flags: 1,
        engine: 0,
        page_bytes: 0,
    };
    let name = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    let mut store = bp_store { handle: 0 };
    // SAFETY: all that it points to is there.
    assert_eq!(unsafe { bp_store_open(name.as_ptr(), &raw const options, &raw mut store) }, 0);
    store
}

/// A transaction in which a panic happened may be half changed, so it must not be committed.
#[test]
fn no_panic_gets_out_and_its_transaction_can_only_be_aborted() {
    const INTERNAL: c_int = bp_store_code::BP_STORE_ERROR_INTERNAL as c_int;
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path());
    let broken = || {
        let mut transaction = bp_store_transaction { handle: 0 };
        // SAFETY: the place is writable.
        assert_eq!(unsafe { bp_store_begin(store, 0, &raw mut transaction) }, 0);
        let code = answer(|| {
            let _inside = crate::transaction::session(transaction)?;
            panic!("as it should");
        });
        assert_eq!(code, INTERNAL);
        transaction
    };
    let tree = bp_store_tree { store: store.handle, number: 1 };
    let transaction = broken();
    // SAFETY: an empty key.
    let code = unsafe { bp_store_get(transaction, tree, std::ptr::null(), 0, std::ptr::null_mut()) };
    assert_eq!(code, INTERNAL);
    assert_eq!(bp_store_abort(transaction), 0);
    let transaction = broken();
    assert_eq!(bp_store_commit(transaction), INTERNAL);
    assert_eq!(bp_store_abort(transaction), bp_store_code::BP_STORE_ERROR_CLOSED as c_int);
    assert_eq!(bp_store_close(store), 0);
}

/// A name with a zero byte, which C cannot write, hides no other one.
#[test]
fn names_that_c_cannot_write_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::builder(folder.path()).memory(1 << 20).capacity(64 << 20).open().unwrap();
    for name in ["a", "a\0", "a\0b", "b"] {
        store.create_tree(name).unwrap();
    }
    store.close().unwrap();
    let store = opened(folder.path());
    let mut name = [0; 256];
    let mut names = Vec::new();
    let place = name.as_mut_ptr();
    // SAFETY: the place has so much room, and a zero.
    while unsafe { bp_store_next_tree(store, place, place, 256) } == 0 {
        // SAFETY: as above.
        names.push(unsafe { std::ffi::CStr::from_ptr(place) }.to_str().unwrap().to_owned());
    }
    assert_eq!(names, ["a", "b"]);
    assert_eq!(bp_store_close(store), 0);
}
