//! Gives an unmodified program that forks to save its memory, a Redis server say, snapshots by `bedplate-snapshot`:
//! `LD_PRELOAD=libbedplate_snapshot_preload.so program`, or `bedplate snapshot run -- program`.
//!
//! Large anonymous mappings are placed in an arena (`arenas`), and `fork` takes a snapshot of it (`forks`): the
//! child sees the same memory at the same addresses, and only what is outside of the arena is copied the usual way. A
//! child that becomes a daemon gets an arena of its own (`daemons`).
//! That works for allocators that map memory through the C library: jemalloc, tcmalloc, mimalloc (`calls`, `program_break`).
//! The C library's own `malloc` does not. A program that uses it runs as before, unless `libbedplate_snapshot_malloc.so` is
//! preloaded after this library, which gives it another allocator (`provider`).
//!
//! `BEDPLATE_SNAPSHOT_ENGINE` chooses the engine: `remap`, `uffd`, or `ring0`, in which the program then runs; `remap` where it works, else `uffd`, unless told.
//!
//! Where userfaultfd, or ring 0, is not available the program runs as it would without the library, after one line that says why.
//!
//! The program's allocator calls the library, so the library has an allocator of its own (`bedplate_preload_allocator`).
//!
//! Environment, which is read once, before `main` (`settings`):
//! - `BEDPLATE_SNAPSHOT_STATISTICS=FILE` appends what happened to a file when the process ends.
//! - `BEDPLATE_SNAPSHOT_REQUIRED=1` ends the program with status 126 where the engine is not available.
//! - `BEDPLATE_SNAPSHOT_BYTES=BYTES` is the arena's size in ring 0; the machine's memory's unless told.
//! - `BEDPLATE_SNAPSHOT_MINIMUM=BYTES` is the size from which mappings are placed in the arena (1048576).
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

/// The exit status of a program that was not to run without snapshots: what shells use for a command that cannot be
/// executed.
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
    // Asked before there are threads.
    provider::contains(0);
    match arenas::start() {
        Ok(()) => statistics::at_exit(),
        Err(error) => {
            say(format_args!("running without snapshots: {error}"));
            statistics::publish_reason(&error);
            if settings().is_required {
                // SAFETY: ends the process without running anything of it, for nothing has begun.
                unsafe { libc::_exit(CANNOT_EXECUTE) };
            }
        }
    }
}

/// Says a line to whoever runs the program, without allocating.
fn say(what: std::fmt::Arguments<'_>) {
    let mut line = [0u8; 512];
    let mut rest = &mut line[..];
    // What does not fit is cut off.
    let _ = writeln!(rest, "bedplate snapshot: {what}");
    let len = 512 - rest.len();
    // Not eprintln!: it panics when the standard error is closed. There is nobody else to tell.
    // SAFETY: bytes of this function's.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len) };
}
