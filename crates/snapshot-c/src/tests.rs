//! Tests that C programs cannot contain: panics, seals, and full tables.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::code::{answer, in_c};
use crate::seal::seal;
use crate::*;

/// Tests that fork, and tests that panic, hold this, because a child cannot get a lock that another thread held at the fork.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn no_panic_gets_out() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(answer(|| panic!("as it should")), bp_snapshot_code::BP_SNAPSHOT_ERROR_INTERNAL as c_int);
    // SAFETY: the text of this thread's last error.
    let text = unsafe { CStr::from_ptr(bp_snapshot_error()) };
    assert_eq!(text, c"something went wrong within the library");
}

#[test]
fn seals_depend_on_the_place_and_on_all_words() {
    let one = seal(16, &[1, 2, 3]);
    assert_eq!(one, seal(16, &[1, 2, 3]));
    for other in [seal(32, &[1, 2, 3]), seal(16, &[0, 2, 3]), seal(16, &[1, 3, 3]), seal(16, &[1, 2, 4])] {
        assert_ne!(one, other);
    }
    assert_ne!(seal(0, &[0]), 0);
}

#[test]
fn reasons_have_the_names_of_this_interface() {
    let text = "its memories do not grow: leave out Builder::reserve; (Builder::reserve), (Memory::spawn)";
    let expected = "its memories do not grow: leave bp_snapshot_options.reserve 0; \
                    (bp_snapshot_options.reserve), (bp_snapshot_spawn)";
    assert_eq!(in_c(text.to_owned()), expected);
}

fn memory() -> bp_snapshot_memory {
    let options = bp_snapshot_options {
        size: size_of::<bp_snapshot_options>(),
        bytes: 4096,
        reserve: 0,
        engine: bp_snapshot_engine::BP_SNAPSHOT_ENGINE_FORK as u32,
        flags: 0,
        snapshots_at_once: 0,
        ahead: 0,
        copiers: 0,
        reserved: 0,
    };
    let mut memory = bp_snapshot_memory { handle: 0 };
    // SAFETY: both pointers point to live objects.
    assert_eq!(unsafe { bp_snapshot_create(&raw const options, &raw mut memory) }, 0);
    memory
}

unsafe extern "C-unwind" fn returns_nine(
    _: *mut c_void,
    _: *const bp_snapshot_view,
    _: bp_snapshot_output,
) -> c_int {
    9
}

fn spawn(memory: bp_snapshot_memory) -> bp_snapshot_task {
    let mut task = bp_snapshot_task { handle: 0 };
    // SAFETY: the function touches nothing.
    let code = unsafe { bp_snapshot_spawn(memory, Some(returns_nine), ptr::null_mut(), &raw mut task) };
    assert_eq!(code, 0);
    task
}

fn join(task: bp_snapshot_task) -> (c_int, i32) {
    let mut result = bp_snapshot_result { data: ptr::null(), len: 0, status: -1, reserved: 0 };
    // SAFETY: the result has this size.
    let code = unsafe { bp_snapshot_join(task, &raw mut result, size_of::<bp_snapshot_result>()) };
    (code, result.status)
}

#[test]
fn a_task_without_room_for_its_output_says_so() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = memory();
    let filled = crate::task::fill_outputs();
    let task = spawn(memory);
    assert_eq!(join(task), (bp_snapshot_code::BP_SNAPSHOT_ERROR_FULL as c_int, -1));
    assert_eq!(bp_snapshot_close_task(task), 0);
    crate::task::empty_outputs(filled);
    let task = spawn(memory);
    assert_eq!(join(task), (0, 9));
    assert_eq!((bp_snapshot_close_task(task), bp_snapshot_destroy(memory)), (0, 0));
}
