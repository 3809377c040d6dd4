//! Servers that make themselves daemons: their parent forks and ends, and the child begins a session of its own.
//!
//! Such a child is not to be a snapshot: it is the server. When it begins its session it gets an arena of its own, so
//! that what it maps from then on is in its own snapshots. What it had before, usually little, is copied by `fork` as
//! ever. Whether its parent lives on does not matter.

use std::ffi::c_int;

use crate::settings::settings;
use crate::{CANNOT_EXECUTE, arenas, forks, say, statistics};

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsid() -> libc::pid_t {
    // SAFETY: a system call without arguments; the C library's function of this name is this one.
    let session = unsafe { libc::syscall(libc::SYS_setsid) } as libc::pid_t;
    if session != -1 && forks::is_snapshot() {
        match arenas::begin_again() {
            Ok(()) => forks::is_owner(),
            Err(error) => {
                say(format_args!("this daemon runs without snapshots: {error}"));
                statistics::publish_reason(&error);
                if settings().is_required {
                    // SAFETY: ends this process, which was not to go on.
                    unsafe { libc::_exit(CANNOT_EXECUTE) };
                }
            }
        }
    }
    session
}

/// The C library's calls its own `setsid`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(stay: c_int, keep_open: c_int) -> c_int {
    // SAFETY: what the C library's does, as the caller wants it.
    unsafe {
        match libc::fork() {
            -1 => return -1,
            0 => {}
            _ => libc::_exit(0),
        }
        if setsid() == -1 || stay == 0 && libc::chdir(c"/".as_ptr()) == -1 {
            return -1;
        }
        if keep_open == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null == -1 || (0..3).any(|fd| libc::dup2(null, fd) == -1) {
                return -1;
            }
            if null > 2 {
                libc::close(null);
            }
        }
    }
    0
}
