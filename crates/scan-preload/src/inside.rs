//! Records whether a thread is inside the library.
//!
//! The library calls functions of the C library that it replaces. A signal handler may interrupt it while it has locks. Both kinds of
//! calls go to the kernel at once.
//!
//! A thread that is inside is not cancelled (`pthread_cancel`), because that would unwind through the library's own functions. The next
//! cancellation point after that cancels it.
//!
//! A signal handler that leaves the library by `siglongjmp` leaves its thread inside. All later calls of that thread go to the
//! kernel, and the stream that it was reading stays locked.

use std::cell::Cell;
use std::ffi::c_int;

thread_local! {
    // The value has no destructor, and the C library creates it with the thread. It needs no allocation, so signal handlers may
    // use it.
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

/// Ends the thread if it was cancelled: `read` is a cancellation point, even if the library serves it. The caller must have
/// nothing to drop.
pub fn cancellation_point() {
    // SAFETY: a function without conditions, which unwinds.
    unsafe { pthread_testcancel() };
}

fn errno() -> *mut c_int {
    // SAFETY: a function without conditions.
    unsafe { libc::__errno_location() }
}

/// While this exists, the thread is inside the library. Dropping it restores `errno`.
pub struct Inside {
    errno: c_int,
    /// Whether the thread could be cancelled before.
    cancel_state: c_int,
}

impl Inside {
    /// Enters the library. `None`: the thread is inside already.
    pub fn enter() -> Option<Self> {
        if IS_INSIDE.replace(true) {
            return None;
        }
        let mut cancel_state = CANCEL_DISABLE;
        // SAFETY: this thread's state, which is restored when the thread leaves.
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
