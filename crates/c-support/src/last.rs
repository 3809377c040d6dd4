//! A thread's last error, and the frame around every function: no panic leaves it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A call that failed.
#[derive(Debug)]
pub struct Failure {
    /// The code that the function returns.
    pub code: c_int,
    /// The error number (errno); 0 if the kernel had no part in it.
    pub number: c_int,
    /// The error in words.
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

/// The error of this thread's last call that failed, in words; "" if no call failed. The text is valid until the next failure.
pub fn text() -> *const c_char {
    // A thread that ends has none any more.
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The error number of this thread's last call that failed.
pub fn number() -> c_int {
    LAST.try_with(|last| last.borrow().number).unwrap_or(0)
}

/// Does what a function does, and gives the code that it returns. A panic becomes the code `internal`: it would end the
/// process, or worse, unwind through C.
pub fn answer(internal: c_int, work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // The table marks an object as broken in which a panic happened, and nobody uses it again.
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            // Its own end may panic once more.
            std::mem::forget(panic);
            Failure { code: internal, number: 0, text: "something went wrong within the library".into() }
        }
    };
    let text = CString::new(failure.text.into_owned()).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, number: failure.number });
    failure.code
}
