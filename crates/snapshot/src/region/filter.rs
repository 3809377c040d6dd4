//! Filters of system calls (seccomp). Some of them end a process that makes a call which they forbid: those of systemd's
//! `SystemCallFilter=` do unless told otherwise.
//!
//! A process can ask whether it has a filter, but not which calls the filter permits. So a child tries calls of which a
//! filter may think ill.

use bedplate_threads::BlockedSignals;
use libc::c_long;

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
    let _blocked = BlockedSignals::all();
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

    /// From now on this thread has a filter that does something about a call; or about those calls only whose argument of
    /// this number has this lower half. Gives whether that worked.
    pub fn set_filter(call: c_long, argument: Option<(u32, libc::c_int)>, action: u32) -> bool {
        const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        /// Where the arguments are, after the number of the call, which is the first word.
        const ARGUMENTS: u32 = 16;
        let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let unless = |test: u32, k, jf| libc::sock_filter {
            code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
            jt: 0,
            jf,
            k,
        };
        // Every number is at least 0.
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
        // SAFETY: the filter is this function's.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        }
    }

    /// Runs `f` in a child with a filter that does something about one call. Gives the child's status.
    pub fn with_filter(call: c_long, action: u32, f: impl FnOnce() -> bool) -> i32 {
        let mut status = -1;
        // SAFETY: a child with a filter of its own, which runs `f` and ends; then its status.
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
