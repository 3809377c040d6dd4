//! The last error of a thread, and the frame around every function, which no panic leaves.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A call that failed.
#[derive(Debug)]
pub struct Failure {
    /// The code that the function returns.
    pub code: c_int,
    /// The error number (errno). It is 0 if the error is not the kernel's.
    pub number: c_int,
    /// The text of the error.
    pub text: Cow<'static, str>,
}

#[derive(Default)]
struct Last {
    text: CString,
    number: c_int,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// The text of the error of this thread's last call that failed. It is "" if no call failed. It is valid until the next failure.
pub fn text() -> *const c_char {
    // A thread that is ending no longer has a text.
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The error number of this thread's last call that failed.
pub fn number() -> c_int {
    LAST.try_with(|last| last.borrow().number).unwrap_or(0)
}

/// Runs the work of a function, and returns the code for the function to return. A panic becomes the code `internal`. It would
/// otherwise end the process, or worse, unwind through C code.
pub fn answer(internal: c_int, work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // The table marks the object in which a panic happened as broken, and it is not used again.
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            // The destructor of the panic's value may panic again.
            std::mem::forget(panic);
            Failure { code: internal, number: 0, text: "something went wrong within the library".into() }
        }
    };
    let text = CString::new(failure.text.into_owned()).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, number: failure.number });
    failure.code
}
