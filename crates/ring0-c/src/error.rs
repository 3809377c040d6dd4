//! Errors in C: a negative errno, and the text of the thread's last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of this thread's last error; "" if there was none. It is valid until the next error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Returns 0, or the negative errno of the error, and stores its text.
pub(crate) fn answer<T>(result: bedplate_ring0::Result<T>) -> c_int {
    match result {
        Ok(_) => 0,
        Err(error) => refuse(error.errno(), &error.to_string()),
    }
}

/// Stores the text of an error; returns its negative errno.
pub(crate) fn refuse(errno: c_int, text: &str) -> c_int {
    // No text contains a zero byte. If one did by mistake, an empty text would be returned.
    LAST.set(CString::new(text).unwrap_or_default());
    -errno
}
