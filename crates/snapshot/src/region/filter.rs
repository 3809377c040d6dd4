//! Filters of system calls (seccomp). Some of them end a process that makes a forbidden call. The filters of
//! systemd's `SystemCallFilter=` do so by default.
//!
//! A process can ask whether it has a filter, but not which calls the filter permits. A child process therefore
//! tries the calls that a filter may forbid.

use bedplate_threads::BlockedSignals;
use libc::c_long;

/// The result of `PR_GET_SECCOMP` for a thread that has filters.
const MODE_FILTER: libc::c_int = 2;

/// Whether this thread has a filter.
pub fn is_filtered() -> bool {
    // SAFETY: only reads the mode.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == MODE_FILTER }
}

/// Whether this process survives the given system calls. They need not succeed.
///
/// A child makes each call with arguments that the kernel refuses: -1 is not a valid descriptor, address or set of
/// flags. Nothing is allocated.
pub fn permits(calls: &[c_long]) -> bool {
    !is_filtered() || survives(calls)
}

fn survives(calls: &[c_long]) -> bool {
    // A signal handler of the program must not run in the child.
    let _blocked = BlockedSignals::all();
    // The program gets no signal when the child ends, and its own `wait` does not find the child. `pthread_atfork`
    // handlers do not run.
    // SAFETY: a child with a copy of this process's memory, which makes system calls and exits.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    match pid {
        -1 => false,
        0 => {
            // SAFETY: system calls that have no effect outside of this child.
            unsafe {
                // If the child is killed, it leaves no core dump.
                libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
                for &call in calls {
                    libc::syscall(call, -1, -1, -1, -1, -1, -1);
                }
                libc::syscall(libc::SYS_exit_group, 0);
            }
            unreachable!("the child has ended")
        }
        pid => loop {
            let mut status = -1;
            // SAFETY: waits for the child created above, which only this thread knows.
            let waited = unsafe { libc::waitpid(pid as libc::pid_t, &raw mut status, libc::__WALL) };
            if waited as c_long == pid {
                return status == 0;
            }
            if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return false;
            }
        },
    }
}

/// Filters for tests.
#[cfg(test)]
pub mod tests {
    use super::*;

    /// The action of a filter that ends the process.
    pub const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

    /// The action of a filter that refuses a call with an error.
    pub fn refuse(error: libc::c_int) -> u32 {
        libc::SECCOMP_RET_ERRNO | error as u32
    }

    /// Sets a filter for this thread that performs `action` for a system call. With `argument`, the filter applies
    /// only to calls whose argument of that number has this lower half. Returns whether that worked.
    pub fn set_filter(call: c_long, argument: Option<(u32, libc::c_int)>, action: u32) -> bool {
        const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        /// Offset in bytes of the arguments in the filter's input. The first word of the input is the number of the
        /// call.
        const ARGUMENTS: u32 = 16;
        let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let unless = |test: u32, k, jf| libc::sock_filter {
            code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
            jt: 0,
            jf,
            k,
        };
        // The test for at least 0 always succeeds.
        let (number, test, value) =
            argument.map_or((0, libc::BPF_JGE, 0), |(number, value)| (number, libc::BPF_JEQ, value as u32));
        let mut program = [
            statement(LOAD, 0),
            unless(libc::BPF_JEQ, call as u32, 3),
            statement(LOAD, ARGUMENTS + 8 * number),
            unless(test, value, 1),
            statement(libc::BPF_RET | libc::BPF_K, action),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the filter belongs to this function.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        }
    }

    /// Runs `f` in a child with a filter that performs `action` for one system call. Returns the child's status.
    pub fn with_filter(call: c_long, action: u32, f: impl FnOnce() -> bool) -> i32 {
        let mut status = -1;
        // SAFETY: the child sets a filter, runs `f` and exits; the parent waits for its status.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let works = set_filter(call, None, action) && is_filtered() && f();
                libc::_exit(i32::from(!works));
            }
            libc::waitpid(pid, &raw mut status, 0);
        }
        status
    }

    #[test]
    fn calls_that_end_the_process_are_known_before() {
        let tried = || {
            let permitted = permits(&[libc::SYS_fsconfig, libc::SYS_userfaultfd]);
            permitted && !permits(&[libc::SYS_userfaultfd, libc::SYS_fsopen])
        };
        assert_eq!(with_filter(libc::SYS_fsopen, KILL, tried), 0);
    }

    #[test]
    fn calls_that_are_refused_are_permitted() {
        assert_eq!(with_filter(libc::SYS_fsopen, refuse(libc::EPERM), || permits(&[libc::SYS_fsopen])), 0);
    }

    /// The child that tries the calls is not visible to the program.
    #[test]
    fn the_program_has_no_child_of_it() {
        let alone = || {
            permits(&[libc::SYS_fsopen]);
            // SAFETY: only queries; there is no child to wait for.
            let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
            waited == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
        };
        assert_eq!(with_filter(libc::SYS_fsopen, KILL, alone), 0);
    }
}
