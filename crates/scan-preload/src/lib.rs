//! Serves the sequential and the large reads of an unmodified program from the cache of a scan service:
//! `LD_PRELOAD=libbedplate_scan_preload.so program`, or `bedplate scan run -- program`.
//!
//! # The invariant
//! The library serves only what the kernel's `pread` would return now. It asks the kernel about the program's own descriptor
//! (`statx`) after the bytes have arrived and before the program's call returns: the descriptor must be open for reading, for the file
//! and the version of the file that the bytes are of (`bedplate_scan::FileVersion`). Otherwise the call goes to the kernel. So the library
//! need not see all calls of the program, and notices writers in any process.
//!
//! # Modules
//! - `calls` has the functions that the program calls instead of the C library's; `real` has the C library's; `buffers` checks that the
//!   program's buffers can be written to.
//! - `descriptors` detects which descriptors are read sequentially, or by large reads, and remembers their files.
//! - `files` has the files that are served, and decides which are; `streams` reads ahead for sequential reads, and `large` serves large
//!   reads anywhere.
//! - `service` is the connection to the daemon. All threads that read belong to the daemon: the library starts none.
//! - `inside` keeps signal handlers that interrupt the library, and the library's own calls, out of it.
//! - `forks` gives a forked child objects of its own; `process` says whether a process may use the library.
//! - `connections` keeps the program from closing the library's descriptors.
//! - The library does not use the program's allocator (`bedplate_preload_allocator`), because a signal handler may interrupt that
//!   allocator and read.
//!
//! # Locks
//! A thread takes locks in this order: a descriptor's entry; the list of files; a file's list of streams; a stream; a file's readers for
//! large reads. A call that waits for the device holds the lock of its stream, or none.
//!
//! # Environment
//! The library reads these variables once, before `main` (`settings`):
//! - `BEDPLATE_SCAN_SOCKET=PATH`: the socket at which the daemon listens. Without it all calls go to the kernel.
//! - `BEDPLATE_SCAN_MINIMUM=BYTES`: smaller files are left to the kernel (67108864). With a smaller minimum, serving also begins
//!   after fewer bytes.
//! - `BEDPLATE_SCAN_PATIENCE=MILLISECONDS`: maximum time of each step with the daemon (2000).
//! - `BEDPLATE_SCAN_RESIDENT=serve`: the library serves files although the page cache has them. This is for tests.
//! - `BEDPLATE_SCAN_TIME_READS=1`: the library times reads of files that are large enough to be served, even without a daemon. So
//!   a program can be compared with and without one.
//! - `BEDPLATE_SCAN_STATISTICS=FILE`: the library appends a line to the file when the process ends.

#![cfg(target_os = "linux")]

mod buffers;
mod calls;
mod connections;
mod descriptors;
mod files;
mod forks;
mod inside;
mod large;
mod limits;
mod process;
mod real;
mod regions;
mod service;
mod settings;
mod statistics;
mod streams;
mod timing;

use bedplate_preload_allocator::PrivateAllocator;

#[global_allocator]
static ALLOCATOR: PrivateAllocator = PrivateAllocator::new();

/// Run by the dynamic loader, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    let Some(_inside) = inside::Inside::enter() else { return };
    real::look_up();
    if settings::load() {
        forks::register();
        statistics::at_exit();
    }
}
