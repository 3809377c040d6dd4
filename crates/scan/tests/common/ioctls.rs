//! Counts the calls of `ioctl` that a thread tries to make. From then on each of them fails.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn caught(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    CALLS.fetch_add(1, SeqCst);
    // SAFETY: the kernel passes the context of the interrupted thread to the handler.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // Set the result of the call.
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::ENOTTY);
}

/// Starts to count in this thread. It cannot be stopped.
pub fn count() -> &'static AtomicU64 {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the call is at the start of the filter's input.
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, libc::SYS_ioctl as u32),
        step(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_TRAP),
        step(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the handler accesses only atomics and its own context. The filter is a valid program, which the kernel copies.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
    &CALLS
}
