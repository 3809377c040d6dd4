//! Lets an unmodified program run in ring 0: `LD_PRELOAD=libbedplate_ring0_preload.so program`, or
//! `bedplate ring0 run -- program`.
//!
//! When the library is loaded, the process is built and the main thread enters ring 0, before `main`; threads
//! that the program starts enter before their function begins. Linux serves their system calls as ever.
//! A thread that loses ring 0 (a signal's handler ends by `longjmp`, say) goes on natively. Children begin
//! natively; one that executes another program loads the library again.
//!
//! Where there is no ring 0 the program runs as it would without the library, after one line that says why.
//!
//! Environment: `BEDPLATE_RING0_STATISTICS=FILE` appends what happened to a file when the process ends;
//! `BEDPLATE_RING0_REQUIRED=1` ends the program with status 126 where there is no ring 0.

#![cfg(target_os = "linux")]

mod statistics;
mod threads;

use std::io::Write;

use bedplate_ring0::Process;

/// The exit status of a program that was not to run without ring 0: what shells use for a command that cannot be
/// executed.
const CANNOT_EXECUTE: i32 = 126;

/// Run by the dynamic loader, after the C library's own set-up and before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    match Process::builder().build().and_then(Process::enter) {
        Ok(_) => statistics::at_exit(),
        Err(error) => {
            // Not eprintln!: it panics when the standard error is closed.
            let _ = writeln!(std::io::stderr(), "bedplate ring0: running natively: {error}");
            if std::env::var_os("BEDPLATE_RING0_REQUIRED").is_some_and(|value| value == "1") {
                // SAFETY: ends the process without running anything of it, for nothing has begun.
                unsafe { libc::_exit(CANNOT_EXECUTE) };
            }
        }
    }
}
