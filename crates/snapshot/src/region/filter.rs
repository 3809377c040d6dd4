//! Filters of system calls (seccomp). Some of them end a process that makes a call which they forbid: those of systemd's
//! `SystemCallFilter=` do unless told otherwise.
//!
//! A process can ask whether it has a filter, but not which calls the filter permits. So a child tries calls of which a
//! filter may think ill.

use libc::c_long;

use super::BlockedSignals;

/// The result of `PR_GET_SECCOMP` for a thread that has filters.
const MODE_FILTER: libc::c_int = 2;

/// Whether this thread has a filter.
pub fn is_filtered() -> bool {
    // SAFETY: a question.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == MODE_FILTER }
}

/// Whether this process survives these system calls. They need not succeed.
///
/// The child makes each of them with arguments that the kernel refuses: -1 is no descriptor, no address and no flags.
/// Nothing is allocated.
pub fn permits(calls: &[c_long]) -> bool {
    !is_filtered() || survives(calls)
}

fn survives(calls: &[c_long]) -> bool {
    // A handler of the program's must not run in the child.
    let _blocked = BlockedSignals::new();
    // The program gets no signal at the child's end, and its own `wait` does not find the child. Handlers of
    // `pthread_atfork` do not run.
    // SAFETY: a child with a copy of this process's memory. It makes system calls and ends.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    match pid {
        -1 => false,
        0 => {
            // SAFETY: system calls that change nothing beyond this child.
            unsafe {
                // A child that is killed leaves no core dump.
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
            // SAFETY: waits for the child made above, which only this thread knows.
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

/// For tests.
#[cfg(test)]
pub mod tests {
    use super::*;

    /// The action of a filter that ends the process.
    pub const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

    /// The action of a filter that answers with an error.
    pub fn refuse(error: libc::c_int) -> u32 {
        libc::SECCOMP_RET_ERRNO | error as u32
    }

    /// Runs `f` in a child with a filter that does something about one call. Gives the child's status.
    pub fn with_filter(call: c_long, action: u32, f: impl FnOnce() -> bool) -> i32 {
        let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
        let mut program = [
            // The call's number is the first word.
            statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0),
            libc::sock_filter {
                code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                jt: 0,
                jf: 1,
                k: call as u32,
            },
            statement((libc::BPF_RET | libc::BPF_K) as u16, action),
            statement((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let mut status = -1;
        // SAFETY: a child with a filter of its own, which runs `f` and ends; then its status.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter);
                let works = set == 0 && is_filtered() && f();
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

    /// Nobody else is told of the child that tries.
    #[test]
    fn the_program_has_no_child_of_it() {
        let alone = || {
            permits(&[libc::SYS_fsopen]);
            // SAFETY: a question; there is nothing to wait for.
            let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
            waited == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
        };
        assert_eq!(with_filter(libc::SYS_fsopen, KILL, alone), 0);
    }
}
