//! Counts the system calls that change files, and kills the process right before a chosen one.
//!
//! The thread that calls [`watch`] installs a seccomp filter. The threads that it starts afterwards inherit the filter. The kernel
//! stops a thread at each of the chosen calls and notifies the supervisor, a thread without the filter. The supervisor counts the
//! call, and then lets the kernel execute it, or kills the process. So a kill hits rare points, such as the moment between a write
//! and its fsync, as easily as common ones.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::{io, process, ptr, thread};

/// Calls so far.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// The call at which the supervisor kills the process.
static KILL_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// The system calls that change files, or that make the kernel change them.
const CHANGES: &[libc::c_long] = &[
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_io_uring_enter,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_openat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
];

/// The number of calls so far.
pub fn count() -> u64 {
    CALLS.load(Ordering::SeqCst)
}

/// Kills the process at the `n`-th call from now on, counted from 1.
pub fn kill_at(n: u64) {
    KILL_AT.store(count() + n, Ordering::SeqCst);
}

/// Kills this process.
pub fn kill() -> ! {
    // SAFETY: the call accesses no memory.
    unsafe { libc::kill(process::id().cast_signed(), libc::SIGKILL) };
    loop {
        thread::park();
    }
}

/// The filter. It notifies the supervisor of the chosen calls, and lets the kernel execute all others.
fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |k, jt, jf| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let answer = |value| statement(libc::BPF_RET | libc::BPF_K, value);
    // Offset 0 of `struct seccomp_data` is the number of the call, offset 16 the first argument.
    let mut program = vec![statement(load, 0)];
    for call in CHANGES {
        if *call == libc::SYS_write {
            // The test reads the lines of the standard output. They do not count as changes of files.
            program.push(jump(*call as u32, 0, 4));
            program.push(statement(load, 16));
            program.push(jump(libc::STDOUT_FILENO as u32, 0, 1));
            program.push(answer(libc::SECCOMP_RET_ALLOW));
            program.push(answer(libc::SECCOMP_RET_USER_NOTIF));
        } else {
            program.push(jump(*call as u32, 0, 1));
            program.push(answer(libc::SECCOMP_RET_USER_NOTIF));
        }
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program
}

/// Installs the filter for this thread and those that it starts. The result receives the kernel's notifications.
fn install() -> io::Result<OwnedFd> {
    let mut program = filter();
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives until the call returns. The kernel returns a descriptor that no other code owns.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            ptr::from_ref(&program),
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Counts calls, and kills the process at the chosen one.
fn supervise(notifications: &OwnedFd) {
    loop {
        // SAFETY: zeros are a valid notification, and the kernel requires them.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one notification.
        let received = unsafe {
            libc::ioctl(notifications.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification)
        };
        if received != 0 {
            // A signal arrived, or the thread that should be stopped has died.
            continue;
        }
        if CALLS.fetch_add(1, Ordering::SeqCst) + 1 >= KILL_AT.load(Ordering::SeqCst) {
            kill();
        }
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut response = libc::seccomp_notif_resp { id: notification.id, val: 0, error: 0, flags };
        // SAFETY: the kernel reads one response. An error says that the stopped thread has died.
        unsafe { libc::ioctl(notifications.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    }
}

/// Begins to count. Fails if this kernel, or a filter of the container, does not allow that.
pub fn watch() -> io::Result<()> {
    let (send, receive) = mpsc::channel::<OwnedFd>();
    // This thread starts before the filter is installed, so it does not have the filter.
    thread::spawn(move || receive.recv().iter().for_each(supervise));
    let notifications = install()?;
    send.send(notifications).map_err(io::Error::other)
}
