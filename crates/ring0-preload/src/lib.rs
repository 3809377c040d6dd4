//! Runs an unmodified program in ring 0: `LD_PRELOAD=libbedplate_ring0_preload.so program`, or `bedplate ring0 run
//! -- program`.
//!
//! When the library is loaded, before `main`, it builds the process and the main thread enters ring 0. A thread
//! that the program starts enters before its function begins. Linux serves their system calls as usual. A thread
//! that loses ring 0 continues in ring 3, for example after the handler of a signal has ended by `longjmp`. Child
//! processes start in ring 3. A child that executes another program loads the library again.
//!
//! Without ring 0, the program runs as it would without the library, after one line on standard error that says
//! why.
//!
//! Environment: with `BEDPLATE_RING0_STATISTICS=FILE`, the library appends the statistics to a file when the
//! process ends. With `BEDPLATE_RING0_REQUIRED=1`, the program exits with status 126 if there is no ring 0.

#![cfg(target_os = "linux")]

mod statistics;
mod threads;

use std::io::Write;

use bedplate_ring0::Process;

/// The exit status if ring 0 is required and missing. Shells use it for a command that cannot be executed.
const CANNOT_EXECUTE: i32 = 126;

/// The dynamic loader calls this after the C library's initialization and before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    match Process::builder().build().and_then(Process::enter) {
        Ok(_) => statistics::at_exit(),
        Err(error) => {
            // `eprintln!` would panic if standard error is closed.
            let _ = writeln!(std::io::stderr(), "bedplate ring0: running natively: {error}");
            if std::env::var_os("BEDPLATE_RING0_REQUIRED").is_some_and(|value| value == "1") {
                // SAFETY: ends the process without running any code of the program, which has not started.
                unsafe { libc::_exit(CANNOT_EXECUTE) };
            }
        }
    }
}
