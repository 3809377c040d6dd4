//! Whether a thread is inside the library.
//!
//! The library calls functions of the C library that it replaces itself, and a signal handler may interrupt it while it has locks.
//! Either call goes to the kernel at once.

use std::cell::Cell;
use std::ffi::c_int;

thread_local! {
    // Without a destructor, and made when the thread is: no memory is allocated for it, so signal handlers may use it.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn errno() -> *mut c_int {
    // SAFETY: a function without conditions.
    unsafe { libc::__errno_location() }
}

/// This thread is inside the library until it is dropped. `errno` is as it was, then.
pub struct Inside {
    errno: c_int,
}

impl Inside {
    /// Enters. `None`: the thread is inside.
    pub fn enter() -> Option<Self> {
        if IS_INSIDE.replace(true) {
            return None;
        }
        // SAFETY: this thread's errno.
        Some(Self { errno: unsafe { *errno() } })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: this thread's errno.
        unsafe { *errno() = self.errno };
        IS_INSIDE.set(false);
    }
}
