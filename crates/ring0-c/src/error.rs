//! Errors as C has them: a negative errno, and a text of the thread's last one.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What went wrong in this thread's last call that failed, in words; "" if none did. Valid until the next one.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// 0, or the error's negative errno.
pub(crate) fn answer<T>(result: bedplate_ring0::Result<T>) -> c_int {
    match result {
        Ok(_) => 0,
        Err(error) => refuse(error.errno(), &error.to_string()),
    }
}

/// Notes what is wrong.
pub(crate) fn refuse(errno: c_int, text: &str) -> c_int {
    // A text with a zero in it would be a mistake of ours; an empty one is then better than none.
    LAST.set(CString::new(text).unwrap_or_default());
    -errno
}
