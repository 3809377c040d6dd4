//! Threads enter ring 0 before their function begins: `pthread_create` is this library's first.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use bedplate_ring0::Process;

type Function = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Function, *mut c_void) -> c_int;

/// What a thread is to do.
struct Start {
    function: Function,
    argument: *mut c_void,
}

/// The C library's `pthread_create`.
fn create() -> Option<Create> {
    static FOUND: OnceLock<usize> = OnceLock::new();
    // SAFETY: a constant name, and what is found is only used as what has that name.
    let found =
        *FOUND.get_or_init(|| unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) } as usize);
    // SAFETY: the next definition of pthread_create has its type.
    (found != 0).then(|| unsafe { std::mem::transmute::<usize, Create>(found) })
}

/// # Safety
/// As for the C library's function of this name, which it is but for the thread's entering ring 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = create() else { return libc::EAGAIN };
    if Process::current().is_none() {
        // SAFETY: the caller's.
        return unsafe { create(thread, attributes, function, argument) };
    }
    let start = Box::into_raw(Box::new(Start { function, argument }));
    // SAFETY: the caller's; `begin` takes what it gets here.
    let result = unsafe { create(thread, attributes, begin, start.cast()) };
    if result != 0 {
        // SAFETY: there is no thread that could have taken it.
        drop(unsafe { Box::from_raw(start) });
    }
    result
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: made by `pthread_create` above for this thread alone.
    let Start { function, argument } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // A thread that cannot enter (there are more than processors) works natively.
    if let Some(process) = Process::current() {
        let _ = process.enter();
    }
    function(argument)
}
