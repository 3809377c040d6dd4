//! The functions of an allocator.

use std::ffi::{CStr, c_int, c_void};

/// An allocator, as the C library's functions of these names.
#[derive(Clone, Copy)]
pub struct Functions {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub reallocarray: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    pub posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    pub aligned_alloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub valloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub pvalloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub malloc_usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
}

impl Functions {
    /// The functions that the program would have without this library. The C library has each of them at least.
    pub fn next() -> Self {
        // SAFETY: the C library documents these types, and every allocator in its place has the same.
        unsafe {
            Self {
                malloc: next(c"malloc"),
                free: next(c"free"),
                calloc: next(c"calloc"),
                realloc: next(c"realloc"),
                reallocarray: next(c"reallocarray"),
                posix_memalign: next(c"posix_memalign"),
                aligned_alloc: next(c"aligned_alloc"),
                memalign: next(c"memalign"),
                valloc: next(c"valloc"),
                pvalloc: next(c"pvalloc"),
                malloc_usable_size: next(c"malloc_usable_size"),
            }
        }
    }
}

/// The definition of a function after this library's.
///
/// # Safety
/// `T` is the type of the function of that name.
unsafe fn next<T: Copy>(name: &CStr) -> T {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: looks up a name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // A program that goes on would mix two allocators.
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
    // SAFETY: the caller vouches for the type, which has the size of a pointer.
    unsafe { std::mem::transmute_copy(&found) }
}
