//! The bundled allocator: jemalloc, and the functions of the C library that jemalloc's interface for Rust lacks.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use tikv_jemalloc_sys as jemalloc;

use crate::functions::Functions;

/// jemalloc's options, under the name by which it finds them.
///
/// - `retain`: jemalloc keeps the addresses that it has mapped. It maps pieces of 2 MiB and more, which grow with the heap.
/// - `background_thread`: threads that are not in a forked child must not do jemalloc's work.
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: Option<&'static c_char> =
    // SAFETY: the first character of a string.
    Some(unsafe { &*c"retain:true,background_thread:false".as_ptr() });

/// The alignment that programs expect of `malloc`.
const ALIGNMENT: usize = align_of::<libc::max_align_t>();

/// jemalloc.
pub static FUNCTIONS: Functions = Functions {
    malloc: jemalloc::malloc,
    free: jemalloc::free,
    calloc: jemalloc::calloc,
    realloc: jemalloc::realloc,
    reallocarray,
    posix_memalign: jemalloc::posix_memalign,
    aligned_alloc: jemalloc::aligned_alloc,
    memalign,
    valloc,
    pvalloc,
    malloc_usable_size,
};

fn out_of_memory() -> *mut c_void {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    ptr::null_mut()
}

fn page() -> usize {
    // SAFETY: a question.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return out_of_memory() };
    // SAFETY: the caller's allocation.
    unsafe { jemalloc::realloc(at, bytes) }
}

/// As the C library's, it rounds the alignment up to a power of two.
unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    let Some(align) = align.max(ALIGNMENT).checked_next_power_of_two() else { return out_of_memory() };
    // SAFETY: a power of two.
    unsafe { jemalloc::aligned_alloc(align, size) }
}

unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: pages are powers of two.
    unsafe { jemalloc::aligned_alloc(page(), size) }
}

/// As [`valloc`], in whole pages.
unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let Some(size) = size.max(1).checked_next_multiple_of(page()) else { return out_of_memory() };
    // SAFETY: pages are powers of two.
    unsafe { jemalloc::aligned_alloc(page(), size) }
}

unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    // SAFETY: the caller's allocation, or null.
    unsafe { jemalloc::malloc_usable_size(at) }
}

/// An allocator that has no memory, for what the decision itself asks for.
pub static NONE: Functions = Functions {
    malloc: no_malloc,
    free: no_free,
    calloc: no_two,
    realloc: no_realloc,
    reallocarray: no_reallocarray,
    posix_memalign: no_posix_memalign,
    aligned_alloc: no_two,
    memalign: no_two,
    valloc: no_malloc,
    pvalloc: no_malloc,
    malloc_usable_size: no_size,
};

unsafe extern "C" fn no_malloc(_: usize) -> *mut c_void {
    out_of_memory()
}

unsafe extern "C" fn no_free(_: *mut c_void) {}

unsafe extern "C" fn no_two(_: usize, _: usize) -> *mut c_void {
    out_of_memory()
}

unsafe extern "C" fn no_realloc(_: *mut c_void, _: usize) -> *mut c_void {
    out_of_memory()
}

unsafe extern "C" fn no_reallocarray(_: *mut c_void, _: usize, _: usize) -> *mut c_void {
    out_of_memory()
}

unsafe extern "C" fn no_posix_memalign(_: *mut *mut c_void, _: usize, _: usize) -> c_int {
    libc::ENOMEM
}

unsafe extern "C" fn no_size(_: *mut c_void) -> usize {
    0
}
