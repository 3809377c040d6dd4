//! Serves the sequential and the large reads of an unmodified program from the cache of a scan service:
//! `LD_PRELOAD=libbedplate_scan_preload.so program`, or `bedplate scan run -- program`.
//!
//! # The invariant
//! The library serves only what the kernel's `pread` would return now. It asks the kernel about the program's own descriptor
//! (`statx`) after the bytes have arrived and before the program's call returns: the descriptor must be open for reading, for the file
//! and the version of the file that the bytes are of (`bedplate_scan::FileVersion`). Otherwise the call goes to the kernel. So nothing
//! depends on seeing all calls of the program, and writers in any process are noticed.
//!
//! # What is where
//! - `calls` has the functions that the program calls instead of the C library's; `real` has the C library's; `buffers` are what the
//!   program reads into.
//! - `descriptors` notices which descriptors are read sequentially, or by large reads, and remembers their files.
//! - `files` has the files that are served, and decides which are; `streams` reads ahead for sequential reads, and `large` serves large
//!   reads anywhere.
//! - `service` is the connection to the daemon. All threads that read are the daemon's: the library starts none.
//! - `inside` keeps a signal handler that interrupts the library, and the library's own calls, out of it; `allocator` keeps the library
//!   apart from the program's allocator; `forks` gives a forked child a library of its own; `connections` keeps the program's hands off
//!   the library's descriptors.
//!
//! # Locks
//! In this order: a descriptor's entry; the list of files; a file's list of streams; a stream; a file's readers for large reads. A call
//! that waits for the device holds its stream, or nothing.
//!
//! # Environment
//! It is read once, before `main` (`settings`):
//! - `BEDPLATE_SCAN_SOCKET=PATH`: where the daemon listens. Without it all calls go to the kernel.
//! - `BEDPLATE_SCAN_MINIMUM=BYTES`: smaller files are left to the kernel (67108864). Below that, serving begins after fewer bytes, too.
//! - `BEDPLATE_SCAN_PATIENCE=MILLISECONDS`: how long each step with the daemon may take (2000).
//! - `BEDPLATE_SCAN_RESIDENT=serve`: files are served although the page cache has them. This is for tests.
//! - `BEDPLATE_SCAN_TIME_READS=1`: reads of files that are large enough to be served are timed, also without a daemon, so that programs
//!   can be compared with and without it.
//! - `BEDPLATE_SCAN_STATISTICS=FILE`: a line is appended to the file when the process ends.

#![cfg(target_os = "linux")]

mod allocator;
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
