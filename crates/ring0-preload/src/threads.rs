//! Threads enter ring 0 before their function begins, because this library replaces `pthread_create`.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use bedplate_ring0::Process;

type Function = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Function, *mut c_void) -> c_int;

/// The function that a thread must run, with its argument.
struct Start {
    function: Function,
    argument: *mut c_void,
}

/// The C library's `pthread_create`.
fn create() -> Option<Create> {
    static FOUND: OnceLock<usize> = OnceLock::new();
    // SAFETY: a constant name. The address found is used only as the function of that name.
    let found =
        *FOUND.get_or_init(|| unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) } as usize);
    // SAFETY: the next definition of pthread_create has its type.
    (found != 0).then(|| unsafe { std::mem::transmute::<usize, Create>(found) })
}

/// Creates a thread that enters ring 0 before its function begins. Otherwise it is the C library's function.
///
/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = create() else { return libc::EAGAIN };
    if Process::current().is_none() {
        // SAFETY: the caller's promise.
        return unsafe { create(thread, attributes, function, argument) };
    }
    let start = Box::into_raw(Box::new(Start { function, argument }));
    // SAFETY: the caller's promise; `begin` takes ownership of `start`.
    let result = unsafe { create(thread, attributes, begin, start.cast()) };
    if result != 0 {
        // SAFETY: no thread was created that could have taken it.
        drop(unsafe { Box::from_raw(start) });
    }
    result
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` above made it for this thread alone.
    let Start { function, argument } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // A thread that cannot enter, for example because all processors are in use, runs in ring 3.
    if let Some(process) = Process::current() {
        let _ = process.enter();
    }
    function(argument)
}
