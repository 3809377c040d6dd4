//! `fork`: the arena is frozen just before it, thawed just after it in the parent, and mapped privately in the child.
//!
//! Handlers that programs register with `pthread_atfork` write to memory, because the allocator takes its locks. Those before the
//! fork must run before the arena is frozen, and those after it when it is thawed or mapped. So this library registers the first
//! handlers of all: the C library runs the first ones last before a fork, and first after it.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bedplate_snapshot::Error;
use bedplate_snapshot::engine::Arena;
use bedplate_threads::BlockedSignals;

use crate::pending::{PENDING, Pending};
use crate::{CANNOT_EXECUTE, arenas, direct_io, say};

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// Whether this process sees the latest arena as it was at the fork.
static IS_SNAPSHOT: AtomicBool = AtomicBool::new(false);

/// Number of the inherited arenas, from the oldest on, whose pages are all this process's own.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Whether this process has a snapshot.
pub fn is_snapshot() -> bool {
    IS_SNAPSHOT.load(Ordering::Relaxed)
}

/// Records that this process, which has a snapshot, now has an arena of its own.
pub fn is_owner() {
    IS_SNAPSHOT.store(false, Ordering::Relaxed);
}

/// The definition of a function after this library's, if there is one.
///
/// # Safety
/// `T` is the type of the function of that name.
pub unsafe fn find_next<T: Copy>(name: &std::ffi::CStr) -> Option<T> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: looks up the next definition after this library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // SAFETY: the caller guarantees the type, which has the size of a pointer.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

/// The same for a function of the C library. Without it the process exits, because nothing works.
pub fn next<T: Copy>(name: &std::ffi::CStr) -> T {
    // SAFETY: callers use the type that the C library documents.
    if let Some(found) = unsafe { find_next(name) } {
        return found;
    }
    say(format_args!("the C library has no {}", name.to_string_lossy()));
    // SAFETY: ends this process, which cannot continue.
    unsafe { libc::_exit(CANNOT_EXECUTE) }
}

fn real_register() -> Register {
    static REAL: OnceLock<Register> = OnceLock::new();
    *REAL.get_or_init(|| {
        let real: Register = next(c"__register_atfork");
        // SAFETY: the handlers exist as long as the process, because the library is never unloaded.
        unsafe { real(Some(before), Some(in_parent), Some(in_child), std::ptr::null_mut()) };
        real
    })
}

/// Registers this library's handlers, if no handlers are registered yet.
pub fn register() {
    real_register();
    // Functions that the handlers call are looked up now. When the handlers run, other threads may hold the loader's locks.
    drop(BlockedSignals::all_but_faults());
}

/// The function that `pthread_atfork` calls.
///
/// # Safety
/// The same as for the C library's function.
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

/// Programs call the function in the C library's static part, which calls `__register_atfork`. Objects that were linked without
/// that part, such as Debian's libtcmalloc, call the function in the shared library, which does not call this library's.
///
/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_atfork(before: Handler, parent: Handler, child: Handler) -> c_int {
    // SAFETY: the caller's arguments. Such objects are never unloaded.
    unsafe { real_register()(before, parent, child, std::ptr::null_mut()) }
}

/// The arena of which `fork` takes a snapshot: that of this process, if its threads run.
fn active() -> Option<&'static dyn Arena> {
    arenas::arena().filter(|arena| arena.is_served() && arenas::is_owner())
}

unsafe extern "C" fn before() {
    // No thread keeps this process's view of other processes' arenas for its children. So the process gets its own copy of all
    // pages.
    let own = OWN.load(Ordering::Relaxed);
    let inherited = arenas::inherited().chain(arenas::arena().filter(|_| is_snapshot()));
    let all = inherited.skip(own).inspect(|arena| arena.own_everything()).count();
    OWN.store(own + all, Ordering::Relaxed);
    if is_snapshot() {
        return;
    }
    let Some(arena) = active() else { return };
    direct_io::before_fork(arena);
    match Pending::begin(arena) {
        Ok(pending) => PENDING.put(pending),
        Err(error) => {
            arena.count_failure();
            say(format_args!("no snapshot: {error}"));
        }
    }
}

unsafe extern "C" fn in_parent() {
    if let Some(pending) = PENDING.take() {
        pending.thaw();
    }
}

/// Makes the memory of this child, which was just forked, the snapshot.
fn map(arena: &dyn Arena) -> Result<(), Error> {
    match PENDING.take() {
        // SAFETY: the child of a fork that froze the arena.
        Some(pending) => unsafe { pending.map_in_child() },
        // The arena has no threads, so no thread froze it.
        // SAFETY: the only thread of a child that has not touched it.
        None if !arena.is_served() => unsafe { arena.copy_in_child() },
        None => Err(Error::OfASnapshot),
    }
}

unsafe extern "C" fn in_child() {
    let Some(arena) = arenas::arena() else { return };
    if is_snapshot() && arena.kind().abilities().children_can_fork {
        return;
    }
    if let Err(error) = map(arena) {
        say(format_args!("a child ends: {error}"));
        // The child's memory is not mapped.
        // SAFETY: ends this process, which cannot continue.
        unsafe { libc::_exit(CANNOT_EXECUTE) };
    }
    IS_SNAPSHOT.store(true, Ordering::Relaxed);
}

/// A fork that starts the arena's threads if necessary, and fails at the maximum number of snapshots.
///
/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    static REAL: OnceLock<unsafe extern "C" fn() -> libc::pid_t> = OnceLock::new();
    if !is_snapshot()
        && let Some(arena) = active()
        && !arena.has_room()
    {
        arena.count_failure();
        say(format_args!("fork: as many snapshots are active as there can be"));
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    }
    if is_snapshot() && arenas::arena().is_some_and(|arena| !arena.kind().abilities().children_can_fork) {
        say(format_args!("fork: there are no snapshots of snapshots"));
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    }
    if !is_snapshot() {
        arenas::before_fork();
    }
    let real = *REAL.get_or_init(|| next(c"fork"));
    // SAFETY: the C library's function.
    unsafe { real() }
}
