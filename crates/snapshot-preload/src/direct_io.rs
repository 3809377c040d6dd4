//! The C library's functions with which a program lets devices write into its memory: direct reads (`O_DIRECT`), and rings of
//! io_uring.
//!
//! The arena pins its pages (`Arena::pin`) before such a function returns, so that no page moves while a device may write
//! to it. A file that is only written directly needs no pinning, because its device only reads memory.
//!
//! A ring that a program sets up by a system call of its own is noticed at the next fork, by the ring's mapping.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_snapshot::engine::Arena;
use bedplate_snapshot::region::has_mapped_ring;

use crate::{arenas, forks, say};

/// Whether the program may let devices write into its memory.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether the user has been told that snapshots take longer, and that an operation failed.
static IS_SAID: AtomicBool = AtomicBool::new(false);
static FAILURE_IS_SAID: AtomicBool = AtomicBool::new(false);

/// Whether arenas of this process must pin their pages.
pub fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::SeqCst)
}

/// Must be called when the program is about to let devices write into its memory.
fn begin() {
    HAS_BEGUN.store(true, Ordering::SeqCst);
    if arenas::is_owner()
        && let Some(arena) = arenas::arena()
    {
        pin(arena);
    }
}

/// Pins the pages of an arena if they must be.
pub fn pin(arena: &dyn Arena) {
    if has_begun()
        && let Err(error) = arena.pin()
        && !FAILURE_IS_SAID.swap(true, Ordering::Relaxed)
    {
        say(format_args!("direct reads into memory may be lost beside a fork: {error}"));
    }
}

/// Must be called when an arena is about to be frozen for a `fork`.
pub fn before_fork(arena: &dyn Arena) {
    // Without `/proc` there is no answer. The functions below notice most programs.
    if !has_begun() && has_mapped_ring().unwrap_or(false) {
        HAS_BEGUN.store(true, Ordering::SeqCst);
        if arena.kind().abilities().moves_pages && arena.statistics().snapshots > 0 {
            say(format_args!(
                "reads into registered buffers may have been lost: the program set up an io_uring that was not noticed \
                 until now; run it with --engine uffd"
            ));
        }
    }
    pin(arena);
    if has_begun() && arena.kind().abilities().moves_pages && !IS_SAID.swap(true, Ordering::Relaxed) {
        say(format_args!(
            "snapshots take as long as fork: the program has devices write into its memory (O_DIRECT, io_uring)"
        ));
    }
}

/// Whether a file that is opened with these flags may be read by a device.
fn reads_directly(flags: c_int) -> bool {
    flags & libc::O_DIRECT != 0 && flags & libc::O_ACCMODE != libc::O_WRONLY
}

fn about_to_open(flags: c_int) {
    if reads_directly(flags) {
        begin();
    }
}

/// Must be called when a descriptor is about to get these flags. They cannot change its access mode.
fn about_to_set(fd: c_int, flags: c_int) {
    if flags & libc::O_DIRECT == 0 {
        return;
    }
    // SAFETY: only queries the flags.
    let opened_for = unsafe { real::__fcntl(fd, libc::F_GETFL, 0) };
    if reads_directly(libc::O_DIRECT | opened_for) {
        begin();
    }
}

/// The C library's functions, by names that this library does not have. They take their last argument from `...`, which makes no
/// difference for numbers and pointers on the supported processors.
mod real {
    use super::{c_char, c_int, c_uint};

    unsafe extern "C" {
        pub fn __open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
        pub fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    }
}

macro_rules! open {
    ($($name:ident),+) => {
        $(
            /// # Safety
            /// The same as for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
                about_to_open(flags);
                // SAFETY: the caller's arguments. Without a flag that needs it, `mode` is not used.
                unsafe { real::__open64(path, flags, mode) }
            }
        )+
    };
}
open!(open, open64);

macro_rules! open_without_mode {
    ($($name:ident),+) => {
        $(
            /// # Safety
            /// The same as for the C library's function, which is called in programs that are compiled with `_FORTIFY_SOURCE`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
                about_to_open(flags);
                // SAFETY: the caller's arguments; the flags need no mode.
                unsafe { real::__open64(path, flags, 0) }
            }
        )+
    };
}
open_without_mode!(__open_2, __open64_2);

type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;

fn real_openat() -> OpenAt {
    static REAL: OnceLock<OpenAt> = OnceLock::new();
    *REAL.get_or_init(|| forks::next(c"openat64"))
}

/// Looks up functions that a signal handler must not look up.
pub fn look_up() {
    real_openat();
}

macro_rules! openat {
    ($($name:ident),+) => {
        $(
            /// # Safety
            /// The same as for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
                about_to_open(flags);
                // SAFETY: the caller's arguments.
                unsafe { real_openat()(at, path, flags, mode) }
            }
        )+
    };
}
openat!(openat, openat64);

macro_rules! openat_without_mode {
    ($($name:ident),+) => {
        $(
            /// # Safety
            /// The same as for the C library's function, which is called in programs that are compiled with `_FORTIFY_SOURCE`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(at: c_int, path: *const c_char, flags: c_int) -> c_int {
                // SAFETY: the caller's arguments; the flags need no mode.
                unsafe { openat64(at, path, flags, 0) }
            }
        )+
    };
}
openat_without_mode!(__openat_2, __openat64_2);

macro_rules! fcntl {
    ($($name:ident),+) => {
        $(
            /// # Safety
            /// The same as for the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
                if command == libc::F_SETFL {
                    about_to_set(fd, argument as c_int);
                }
                // SAFETY: the caller's arguments.
                unsafe { real::__fcntl(fd, command, argument) }
            }
        )+
    };
}
fcntl!(fcntl, fcntl64);

/// # Safety
/// The same as for the C library's function: the arguments are those of the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match number {
        libc::SYS_io_uring_setup => begin(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => about_to_open(b as c_int),
        libc::SYS_openat => about_to_open(c as c_int),
        libc::SYS_openat2 if c != 0 && d >= size_of::<u64>() => {
            // SAFETY: the call's third argument is a structure that begins with the flags.
            about_to_open(unsafe { (c as *const u64).read_unaligned() } as c_int);
        }
        libc::SYS_fcntl if b as c_int == libc::F_SETFL => about_to_set(a as c_int, c as c_int),
        _ => {}
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { enter_kernel(number, [a, b, c, d, e, f]) };
    if (-4095..0).contains(&result) {
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = -result as c_int };
        return -1;
    }
    result as c_long
}

/// Makes a system call, and returns the kernel's result. An allocator may be waiting for it, so the code does not look up the C
/// library's function.
///
/// # Safety
/// The same as for the system call.
#[cfg(target_arch = "x86_64")]
unsafe fn enter_kernel(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: guaranteed by the caller; these are the registers that the kernel reads and changes.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// The same for another processor.
///
/// # Safety
/// The same as for the system call.
#[cfg(target_arch = "aarch64")]
unsafe fn enter_kernel(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: guaranteed by the caller; these are the registers that the kernel reads and changes.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
        );
    }
    result
}

macro_rules! liburing {
    ($($name:ident ($($argument:ident: $type:ty),+);)+) => {
        $(
            /// # Safety
            /// The same as for liburing's function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
                type Function = unsafe extern "C" fn($($type),+) -> c_int;
                static REAL: OnceLock<Option<Function>> = OnceLock::new();
                begin();
                let name = const {
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without zeros"),
                    }
                };
                // SAFETY: the type of liburing's function of this name.
                match REAL.get_or_init(|| unsafe { forks::find_next(name) }) {
                    // SAFETY: the caller's arguments.
                    Some(real) => unsafe { real($($argument),+) },
                    None => -libc::ENOSYS,
                }
            }
        )+
    };
}
liburing! {
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut c_void,
        params: *mut c_void,
        memory: *mut c_void,
        bytes: usize
    );
    io_uring_setup(entries: c_uint, params: *mut c_void);
}
