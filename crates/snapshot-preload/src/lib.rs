//! Gives snapshots (`bedplate-snapshot`) to an unmodified program that forks to save its memory, such as a Redis server:
//! `LD_PRELOAD=libbedplate_snapshot_preload.so program`, or `bedplate snapshot run -- program`.
//!
//! Large anonymous mappings are placed in an arena (`arenas`), and `fork` takes a snapshot of it (`forks`): the
//! child sees the same memory at the same addresses, and only memory outside of the arena is copied in the usual way. A child
//! that becomes a daemon gets an arena of its own (`daemons`). This works for allocators that map memory through the C library:
//! jemalloc, tcmalloc, mimalloc (`calls`, `program_break`). The C library's own `malloc` does not. A program that uses it runs as
//! before, unless `libbedplate_snapshot_malloc.so` is preloaded after this library, which gives it another allocator
//! (`provider`).
//!
//! `BEDPLATE_SNAPSHOT_ENGINE` chooses the engine: `remap`, `uffd`, or `ring0`, in which the program then runs. The default is
//! `remap` if it works, and otherwise `uffd`.
//!
//! If userfaultfd, or ring 0, is not available, the program runs as without the library, after one line that says why.
//!
//! The program's allocator calls the library, so the library has an allocator of its own (`bedplate_preload_allocator`).
//!
//! The library reads these environment variables once, before `main` (`settings`):
//! - `BEDPLATE_SNAPSHOT_STATISTICS=FILE` appends the statistics to a file when the process ends.
//! - `BEDPLATE_SNAPSHOT_REQUIRED=1` ends the program with status 126 if the engine is not available.
//! - `BEDPLATE_SNAPSHOT_BYTES=BYTES` is the arena's size in ring 0. The default is the size of the machine's memory.
//! - `BEDPLATE_SNAPSHOT_MINIMUM=BYTES` is the minimum size of mappings that are placed in the arena (1048576).
//! - `BEDPLATE_SNAPSHOT_HUGE_PAGES=0` keeps the kernel from backing the arena with huge pages.

#![cfg(target_os = "linux")]

mod arenas;
mod calls;
mod daemons;
mod direct_io;
mod forks;
mod owner;
mod pending;
mod program_break;
mod provider;
mod settings;
#[cfg(target_arch = "x86_64")]
mod signals;
mod statistics;

use std::io::Write;

use bedplate_preload_allocator::PrivateAllocator;

use settings::settings;

/// The exit status of a program that must not run without snapshots. Shells use it for a command that cannot be executed.
const CANNOT_EXECUTE: i32 = 126;

#[global_allocator]
static ALLOCATOR: PrivateAllocator = PrivateAllocator::new();

/// Run by the dynamic loader, after the allocator's set-up and before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    forks::register();
    direct_io::look_up();
    // This is called before there are threads.
    provider::contains(0);
    match arenas::start() {
        Ok(()) => statistics::at_exit(),
        Err(error) => {
            say(format_args!("running without snapshots: {error}"));
            statistics::publish_reason(&error);
            if settings().is_required {
                // SAFETY: ends the process without running its exit handlers, because nothing has begun.
                unsafe { libc::_exit(CANNOT_EXECUTE) };
            }
        }
    }
}

/// Prints a line for the user, without allocating.
fn say(what: std::fmt::Arguments<'_>) {
    let mut line = [0u8; 512];
    let mut rest = &mut line[..];
    // Text that does not fit is cut off.
    let _ = writeln!(rest, "bedplate snapshot: {what}");
    let len = 512 - rest.len();
    // This is not `eprintln!`, which panics when the standard error is closed. The message cannot go anywhere else.
    // SAFETY: bytes of this function.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len) };
}
