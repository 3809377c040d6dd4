//! `fork`: the region is frozen just before it, thawed just after it in the parent, and mapped privately in the child.
//!
//! Handlers that programs register by `pthread_atfork` write to memory (the allocator takes its locks). Those before the
//! fork must run before the region is frozen, those after it when it is thawed or mapped: so this library's are the
//! first ever registered, for the C library runs the first one last before a fork, and first after it.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bedplate_snapshot::uffd::{Frozen, Region};

use crate::{CANNOT_EXECUTE, heap, say};

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// Whether this process sees the latest region as it was when it was forked.
static IS_SNAPSHOT: AtomicBool = AtomicBool::new(false);

/// What is between the handlers before and after a fork.
struct Pending(UnsafeCell<Option<Frozen<'static>>>);
// SAFETY: only used by the thread that has the region frozen: there is one at a time.
unsafe impl Sync for Pending {}
static PENDING: Pending = Pending(UnsafeCell::new(None));

/// How many of the inherited regions, from the oldest on, are all this process's own.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Whether this process is a snapshot's.
pub fn is_snapshot() -> bool {
    IS_SNAPSHOT.load(Ordering::Relaxed)
}

/// This process, a snapshot's, has a region of its own now.
pub fn is_owner() {
    IS_SNAPSHOT.store(false, Ordering::Relaxed);
}

fn next<T: Copy>(name: &std::ffi::CStr) -> T {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: looks up a name after this library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        say(format_args!("the C library has no {}", name.to_string_lossy()));
        // SAFETY: nothing can work without it.
        unsafe { libc::_exit(CANNOT_EXECUTE) };
    }
    // SAFETY: callers say the type that the function of that name has; it has the size of a pointer.
    unsafe { std::mem::transmute_copy(&found) }
}

fn real_register() -> Register {
    static REAL: OnceLock<Register> = OnceLock::new();
    *REAL.get_or_init(|| {
        let real: Register = next(c"__register_atfork");
        // SAFETY: handlers that stay as long as the process: the library is never unloaded.
        unsafe { real(Some(before), Some(in_parent), Some(in_child), std::ptr::null_mut()) };
        real
    })
}

/// Registers this library's handlers, if nobody has registered any yet.
pub fn register() {
    real_register();
}

/// What `pthread_atfork` calls.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    before: Handler,
    parent: Handler,
    child: Handler,
    dso: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { real_register()(before, parent, child, dso) }
}

/// Whether nothing of the program's is in the region yet, or its threads do not run.
fn active() -> Option<&'static Region> {
    heap::region().filter(|region| region.is_served())
}

unsafe extern "C" fn before() {
    // What this process sees of other processes' regions nobody keeps for its children. So it gets all of its own.
    let own = OWN.load(Ordering::Relaxed);
    let inherited = heap::inherited().chain(heap::region().filter(|_| is_snapshot()));
    let all = inherited.skip(own).inspect(|region| region.own_everything()).count();
    OWN.store(own + all, Ordering::Relaxed);
    if is_snapshot() {
        return;
    }
    let Some(region) = active() else { return };
    match region.freeze() {
        // SAFETY: this thread has the region frozen.
        Ok(frozen) => unsafe { *PENDING.0.get() = Some(frozen) },
        Err(error) => say(format_args!("no snapshot: {error}")),
    }
}

unsafe extern "C" fn in_parent() {
    if is_snapshot() || active().is_none() {
        return;
    }
    // SAFETY: this thread has the region frozen, if there is anything.
    if let Some(frozen) = unsafe { (*PENDING.0.get()).take() } {
        // Without a child the snapshot ends by itself.
        frozen.thaw();
    }
}

unsafe extern "C" fn in_child() {
    if is_snapshot() {
        return;
    }
    let Some(region) = heap::region() else { return };
    // SAFETY: the only thread.
    let mapped = match unsafe { (*PENDING.0.get()).take() } {
        // SAFETY: the child of a fork that froze the region.
        Some(frozen) => unsafe { frozen.map_in_child() },
        // The region has no threads, so nobody froze it.
        // SAFETY: as above.
        None if !region.is_served() => unsafe { region.share_in_child() },
        None => {
            // Its memory is not there.
            // SAFETY: ends this process, which cannot go on.
            unsafe { libc::_exit(CANNOT_EXECUTE) }
        }
    };
    if let Err(error) = mapped {
        say(format_args!("a child ends: {error}"));
        // SAFETY: as above.
        unsafe { libc::_exit(CANNOT_EXECUTE) };
    }
    IS_SNAPSHOT.store(true, Ordering::Relaxed);
}

/// A fork that says so when there are as many snapshots as there can be.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    static REAL: OnceLock<unsafe extern "C" fn() -> libc::pid_t> = OnceLock::new();
    if !is_snapshot()
        && let Some(region) = active()
        && !region.has_room()
    {
        say(format_args!("fork: as many snapshots are active as there can be"));
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    }
    let real = *REAL.get_or_init(|| next(c"fork"));
    // SAFETY: the C library's function.
    unsafe { real() }
}
