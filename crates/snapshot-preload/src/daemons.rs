//! Servers that become daemons: the parent forks and exits, and the child begins a session of its own.
//!
//! Such a child must not be a snapshot, because it is the server. When it begins its session, it gets an arena of its own, so
//! that its own snapshots include later mappings. Its earlier memory, usually little, is copied by `fork` as usual. It does not
//! matter whether the parent continues.

use std::ffi::c_int;

use crate::settings::settings;
use crate::{CANNOT_EXECUTE, arenas, forks, say, statistics};

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsid() -> libc::pid_t {
    // SAFETY: a system call without arguments. The C library's function is not called, because this one replaces it.
    let session = unsafe { libc::syscall(libc::SYS_setsid) } as libc::pid_t;
    if session != -1 && forks::is_snapshot() {
        match arenas::begin_again() {
            Ok(()) => forks::is_owner(),
            Err(error) => {
                say(format_args!("this daemon runs without snapshots: {error}"));
                statistics::publish_reason(&error);
                if settings().is_required {
                    // SAFETY: ends this process, which must not continue.
                    unsafe { libc::_exit(CANNOT_EXECUTE) };
                }
            }
        }
    }
    session
}

/// The C library's function calls its own `setsid`.
///
/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(stay: c_int, keep_open: c_int) -> c_int {
    // SAFETY: the same calls as in the C library's function.
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
