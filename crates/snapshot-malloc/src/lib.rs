//! Gives a program that uses the C library's `malloc` an allocator whose memory has snapshots: jemalloc. It is preloaded
//! after `libbedplate_snapshot_preload.so`, whose `mmap` jemalloc calls. The C library's `malloc` calls a `mmap` of its own,
//! which no other library can replace.
//!
//! `bedplate snapshot run` preloads it unless told otherwise. The processes that the program starts inherit it. Each process
//! decides at its first allocation which allocator it uses (`choice`): a program that brings an allocator of its own keeps it.
//!
//! Invariants:
//! - A process uses one allocator from its first allocation to its end.
//! - jemalloc has no threads, and its handlers for `fork` are registered by the preloaded `__register_atfork`. So they run
//!   before the snapshot is taken, and after it has been taken.
//!
//! `BEDPLATE_SNAPSHOT_MALLOC=bundled` has every process use this library's allocator. `_RJEM_MALLOC_CONF` has jemalloc's
//! options, such as `dirty_decay_ms:1000`.

#![cfg(target_os = "linux")]

mod bundled;
mod choice;
mod functions;

use std::ffi::{c_int, c_void};

use choice::functions;

/// Defines functions of the C library that call the function of the same name of the process's allocator.
macro_rules! define {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller's arguments.
            unsafe { (functions().$name)($($argument),*) }
        }
    )*};
}

define! {
    malloc(size: usize) -> *mut c_void;
    free(at: *mut c_void);
    calloc(count: usize, size: usize) -> *mut c_void;
    realloc(at: *mut c_void, size: usize) -> *mut c_void;
    reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void;
    posix_memalign(at: *mut *mut c_void, align: usize, size: usize) -> c_int;
    aligned_alloc(align: usize, size: usize) -> *mut c_void;
    memalign(align: usize, size: usize) -> *mut c_void;
    valloc(size: usize) -> *mut c_void;
    pvalloc(size: usize) -> *mut c_void;
    malloc_usable_size(at: *mut c_void) -> usize;
}

/// The address of the function that serves `malloc` in this process. `libbedplate_snapshot_preload.so` asks for it.
#[unsafe(no_mangle)]
extern "C" fn bedplate_snapshot_malloc_function() -> *const c_void {
    choice::provider()
}
