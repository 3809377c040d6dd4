//! Signals of a program in ring 0. Its handlers run where the thread is, because there is no arena in ring 3.
//!
//! This module stores the actions that the program sets with `sigaction` and `signal`. The kernel knows the handler of
//! `bedplate-ring0`, which calls [`run`]. Signals that an instruction causes are handled in ring 3 as usual. SIGSEGV goes first
//! to the library that takes threads into ring 0.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_ring0::handlers::set_signal_handler;

use crate::arenas;

const SIGNALS: usize = 65;
/// Signals that instructions cause, and signals that cannot be handled.
const NATIVE: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGKILL, libc::SIGSTOP];
const KERNEL_SIGNALS_BYTES: usize = 8;

type Real = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

type Mask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// The program's action for each signal: a handler, its flags, and the signals it blocks.
struct Wanted {
    handler: AtomicUsize,
    flags: AtomicUsize,
    mask: AtomicUsize,
}

static WANTED: [Wanted; SIGNALS] = [const {
    Wanted { handler: AtomicUsize::new(0), flags: AtomicUsize::new(0), mask: AtomicUsize::new(0) }
}; SIGNALS];

thread_local! {
    /// Whether this thread is in one of Bedplate's libraries, whose actions go to the kernel.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`, whose actions go to the kernel and not to this module.
pub fn natively<R>(act: impl FnOnce() -> R) -> R {
    let before = OURS.replace(true);
    let result = act();
    OURS.set(before);
    result
}

fn real() -> Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    *REAL.get_or_init(|| crate::forks::next(c"sigaction"))
}

/// The first signals of a set, as a word.
fn word(set: &libc::sigset_t) -> usize {
    // SAFETY: a set begins with the kernel's set.
    unsafe { std::ptr::from_ref(set).cast::<usize>().read() }
}

fn set(word: usize) -> libc::sigset_t {
    const { assert!(size_of::<usize>() == KERNEL_SIGNALS_BYTES) };
    // SAFETY: zeros are a valid set, and this is its first word.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        (&raw mut set).cast::<usize>().write(word);
        set
    }
}

/// Runs the program's handler.
fn run(signal: i32, info: &libc::siginfo_t) {
    let Some(wanted) = WANTED.get(signal as usize) else { return };
    let (handler, flags) = (wanted.handler.load(Ordering::Acquire), wanted.flags.load(Ordering::Relaxed));
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    let block = set(wanted.mask.load(Ordering::Relaxed));
    let mut before = MaybeUninit::uninit();
    // SAFETY: reads the one set and writes the other.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const block, before.as_mut_ptr()) };
    if flags & libc::SA_SIGINFO as usize != 0 {
        // SAFETY: with this flag, the program's handler has this type.
        let handler: extern "C" fn(c_int, *const libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        // SAFETY: zeros are a valid context. The context of the interrupted code is not known.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        handler(signal, info, (&raw mut context).cast());
    } else {
        // SAFETY: without the flag, it has this type.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
    // SAFETY: written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
}

/// Whether the handlers of a signal must run in ring 0.
fn is_ours(signal: c_int) -> bool {
    let known =
        (1..SIGNALS as c_int).contains(&signal) && (!NATIVE.contains(&signal) || signal == libc::SIGSEGV);
    known && arenas::in_ring0().is_some() && !OURS.get()
}

/// The action that a program receives for a signal.
fn told(signal: c_int) -> libc::sigaction {
    let wanted = &WANTED[signal as usize];
    // SAFETY: zeros are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = wanted.handler.load(Ordering::Acquire);
    action.sa_flags = wanted.flags.load(Ordering::Relaxed) as c_int;
    action.sa_mask = set(wanted.mask.load(Ordering::Relaxed));
    action
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_ours(signal) {
        // SAFETY: the caller's arguments.
        return unsafe { real()(signal, new, old) };
    }
    let before = told(signal);
    // SAFETY: the caller's action, or none.
    if let Some(new) = unsafe { new.as_ref() } {
        let wanted = &WANTED[signal as usize];
        wanted.mask.store(word(&new.sa_mask) & !(1 << (libc::SIGSEGV - 1)), Ordering::Relaxed);
        wanted.flags.store(new.sa_flags as usize, Ordering::Relaxed);
        wanted.handler.store(new.sa_sigaction, Ordering::Release);
        let handled = new.sa_sigaction != libc::SIG_DFL && new.sa_sigaction != libc::SIG_IGN;
        let restart = new.sa_flags & libc::SA_RESTART != 0;
        let result = match signal {
            libc::SIGSEGV => {
                bedplate_snapshot::ring0::set_segv_action(*new);
                0
            }
            _ if handled => {
                let done = natively(|| set_signal_handler(signal, Some(run), restart));
                if done.is_ok() { 0 } else { -1 }
            }
            // SAFETY: the caller's action.
            _ => unsafe { real()(signal, new, std::ptr::null_mut()) },
        };
        if result != 0 {
            return result;
        }
    }
    if !old.is_null() {
        // SAFETY: the caller's pointer.
        unsafe { old.write(before) };
    }
    0
}

/// Blocks signals, but never SIGSEGV. Without SIGSEGV, a thread in ring 3, and the threads that it starts, could not enter ring
/// 0.
fn block(
    real: &'static OnceLock<Mask>,
    name: &std::ffi::CStr,
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    let real = real.get_or_init(|| crate::forks::next(name));
    // SAFETY: the caller's set, or none.
    let new = unsafe { new.as_ref() };
    let blocks = how != libc::SIG_UNBLOCK && arenas::in_ring0().is_some();
    let without = new.filter(|_| blocks).map(|set| {
        let mut set = *set;
        // SAFETY: the set belongs to this function.
        unsafe { libc::sigdelset(&raw mut set, libc::SIGSEGV) };
        set
    });
    let new = without.as_ref().or(new).map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the caller's arguments, or a set of this function.
    unsafe { real(how, new, old) }
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    static REAL: OnceLock<Mask> = OnceLock::new();
    block(&REAL, c"pthread_sigmask", how, new, old)
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    static REAL: OnceLock<Mask> = OnceLock::new();
    block(&REAL, c"sigprocmask", how, new, old)
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: zeros are valid actions.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    (new.sa_sigaction, new.sa_flags) = (handler, libc::SA_RESTART);
    // SAFETY: both belong to this function.
    match unsafe { sigaction(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}
