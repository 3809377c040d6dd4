//! Whether a thread is inside the library.
//!
//! The library calls functions of the C library that it replaces itself, and a signal handler may interrupt it while it has locks.
//! Either call goes to the kernel at once.
//!
//! A thread that is inside is not cancelled (`pthread_cancel`), because that would unwind through the library's own functions. It is
//! cancelled by the next cancellation point after that.
//!
//! A signal handler that leaves the library by `siglongjmp` leaves its thread inside. All later calls of that thread go to the
//! kernel, and the stream that it was reading stays locked.

use std::cell::Cell;
use std::ffi::c_int;

thread_local! {
    // Without a destructor, and made when the thread is: no memory is allocated for it, so signal handlers may use it.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Ends the thread if it was cancelled: `read` is a cancellation point, also where the library serves it. The caller has nothing to be
/// dropped.
pub fn cancellation_point() {
    // SAFETY: a function without conditions, which unwinds.
    unsafe { pthread_testcancel() };
}

fn errno() -> *mut c_int {
    // SAFETY: a function without conditions.
    unsafe { libc::__errno_location() }
}

/// This thread is inside the library until it is dropped. `errno` is as it was, then.
pub struct Inside {
    errno: c_int,
    /// Whether the thread could be cancelled before.
    cancel_state: c_int,
}

impl Inside {
    /// Enters. `None`: the thread is inside.
    pub fn enter() -> Option<Self> {
        if IS_INSIDE.replace(true) {
            return None;
        }
        let mut cancel_state = CANCEL_DISABLE;
        // SAFETY: a state of this thread's, which is given back when it leaves.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancel_state) };
        // SAFETY: this thread's errno.
        Some(Self { errno: unsafe { *errno() }, cancel_state })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: this thread's errno.
        unsafe { *errno() = self.errno };
        IS_INSIDE.set(false);
        // SAFETY: the state that the thread had.
        unsafe { pthread_setcancelstate(self.cancel_state, std::ptr::null_mut()) };
    }
}
