//! The C library's functions that this library replaces.
//!
//! A thread that is cancelled unwinds from within these functions. So callers must have nothing to drop when they call them.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::sync::OnceLock;

use libc::{FILE, iovec, off_t, size_t, ssize_t};

/// The functions.
#[derive(Clone, Copy)]
pub struct Real {
    pub read: unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t) -> ssize_t,
    pub pread: unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, off_t) -> ssize_t,
    pub readv: unsafe extern "C-unwind" fn(c_int, *const iovec, c_int) -> ssize_t,
    pub preadv: unsafe extern "C-unwind" fn(c_int, *const iovec, c_int, off_t) -> ssize_t,
    pub preadv2: unsafe extern "C-unwind" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t,
    pub read_chk: unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, size_t) -> ssize_t,
    pub pread_chk: unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, off_t, size_t) -> ssize_t,
    pub lseek: unsafe extern "C-unwind" fn(c_int, off_t, c_int) -> off_t,
    pub fclose: unsafe extern "C-unwind" fn(*mut FILE) -> c_int,
    pub prctl: unsafe extern "C-unwind" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int,
    pub close: unsafe extern "C-unwind" fn(c_int) -> c_int,
    pub dup2: unsafe extern "C-unwind" fn(c_int, c_int) -> c_int,
    pub dup3: unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int,
    pub posix_fadvise: unsafe extern "C-unwind" fn(c_int, off_t, off_t, c_int) -> c_int,
    pub readahead: unsafe extern "C-unwind" fn(c_int, off_t, size_t) -> ssize_t,
}

static REAL: OnceLock<Real> = OnceLock::new();

/// Looks the functions up. The library calls this before there are threads.
pub fn look_up() {
    real();
}

/// The functions.
pub fn real() -> &'static Real {
    // SAFETY: each has the type that the C library documents. The C library's headers define those of the functions that check sizes.
    REAL.get_or_init(|| unsafe {
        Real {
            read: next(c"read"),
            pread: next(c"pread"),
            readv: next(c"readv"),
            preadv: next(c"preadv"),
            preadv2: next(c"preadv2"),
            read_chk: next(c"__read_chk"),
            pread_chk: next(c"__pread_chk"),
            lseek: next(c"lseek"),
            fclose: next(c"fclose"),
            prctl: next(c"prctl"),
            close: next(c"close"),
            dup2: next(c"dup2"),
            dup3: next(c"dup3"),
            posix_fadvise: next(c"posix_fadvise"),
            readahead: next(c"readahead"),
        }
    })
}

/// The definition of a function after this library's.
///
/// # Safety
/// `T` is the type of the function of that name.
unsafe fn next<T: Copy>(name: &CStr) -> T {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: the call looks up a name after this library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        let text = c"bedplate scan: the C library lacks a function that the library replaces\n";
        // SAFETY: these calls write a text and end a process that cannot continue.
        unsafe {
            libc::syscall(
                libc::SYS_write,
                libc::STDERR_FILENO,
                text.as_ptr().cast::<c_char>(),
                text.count_bytes(),
            );
            libc::_exit(126)
        }
    }
    // SAFETY: the caller guarantees the type, which has the size of a pointer.
    unsafe { std::mem::transmute_copy(&found) }
}
