//! The arguments of system calls that point to memory, the length of that memory, and how Linux uses it.
//!
//! Calls that are not listed fail with `EFAULT` for addresses in a memory, because Linux has nothing mapped there.

use libc::c_long;

/// The way in which Linux uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// The length of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// A fixed number of bytes.
    Fixed(u64),
    /// The value of an argument, in elements of this many bytes.
    Argument(usize, u64),
    /// The value of an argument in bytes. The call may process less, and returns the number of bytes processed.
    Partial(usize),
    /// The word that an argument points to, in bytes.
    PointedTo(usize),
    /// Up to and including a zero byte.
    Text,
    /// An array of `iovec`, each with a buffer; its length is the value of an argument. The call may process less,
    /// and returns the number of bytes processed.
    Pieces(usize),
    /// A `msghdr`.
    Message,
}

/// An argument that points to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    pub argument: usize,
    pub access: Access,
    pub length: Length,
}

const fn reads(argument: usize, length: Length) -> Buffer {
    Buffer { argument, access: Access::Read, length }
}

const fn writes(argument: usize, length: Length) -> Buffer {
    Buffer { argument, access: Access::Write, length }
}

const fn text(argument: usize) -> Buffer {
    reads(argument, Length::Text)
}

/// Whether an argument may lead to memory although its own address is not in a memory.
pub fn is_indirect(number: u64) -> bool {
    matches!(
        number as c_long,
        libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_sendmsg
            | libc::SYS_recvmsg
    )
}

/// Whether a call changes the mappings at its first argument.
pub fn changes_mappings(number: u64) -> bool {
    matches!(
        number as c_long,
        libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mprotect
            | libc::SYS_pkey_mprotect
            | libc::SYS_mremap
            | libc::SYS_madvise
            | libc::SYS_remap_file_pages
    )
}

/// Whether Linux ignores an argument of this call because of the other arguments. The caller need not set such an
/// argument, so its register may contain any value.
pub fn is_ignored(number: u64, arguments: &[u64; 6], argument: usize) -> bool {
    match (number as c_long, argument) {
        (libc::SYS_futex, 3) => !has_timeout(arguments[1]),
        (libc::SYS_futex, 4) => !has_second_word(arguments[1]),
        (libc::SYS_epoll_ctl, 3) => arguments[1] as i32 == libc::EPOLL_CTL_DEL,
        // The length of an address that the caller does not request.
        (libc::SYS_accept | libc::SYS_accept4, 2) => arguments[1] == 0,
        (libc::SYS_recvfrom, 5) => arguments[4] == 0,
        _ => false,
    }
}

fn futex_operation(argument: u64) -> i32 {
    argument as i32 & libc::FUTEX_CMD_MASK
}

fn has_timeout(operation: u64) -> bool {
    matches!(
        futex_operation(operation),
        libc::FUTEX_WAIT
            | libc::FUTEX_WAIT_BITSET
            | libc::FUTEX_WAIT_REQUEUE_PI
            | libc::FUTEX_LOCK_PI
            | libc::FUTEX_LOCK_PI2
    )
}

fn has_second_word(operation: u64) -> bool {
    matches!(
        futex_operation(operation),
        libc::FUTEX_REQUEUE
            | libc::FUTEX_CMP_REQUEUE
            | libc::FUTEX_CMP_REQUEUE_PI
            | libc::FUTEX_WAIT_REQUEUE_PI
            | libc::FUTEX_WAKE_OP
    )
}

/// The buffers of a system call.
pub fn of(number: u64) -> &'static [Buffer] {
    use Length::{Argument, Fixed, Message, Partial, Pieces, PointedTo};
    const STAT: Length = Fixed(size_of::<libc::stat>() as u64);
    const TIME: Length = Fixed(16);
    const INT: Length = Fixed(4);
    const SIGNALS: Length = Fixed(8);
    match number as c_long {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_getdents64 => const { &[writes(1, Partial(2))] },
        libc::SYS_write | libc::SYS_pwrite64 => const { &[reads(1, Partial(2))] },
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => const { &[writes(1, Pieces(2))] },
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => const { &[reads(1, Pieces(2))] },
        libc::SYS_sendto => const { &[reads(1, Partial(2)), reads(4, Argument(5, 1))] },
        libc::SYS_recvfrom => const { &[writes(1, Partial(2)), writes(4, PointedTo(5)), writes(5, INT)] },
        libc::SYS_sendmsg => const { &[reads(1, Message)] },
        libc::SYS_recvmsg => const { &[writes(1, Message)] },
        libc::SYS_connect | libc::SYS_bind => const { &[reads(1, Argument(2, 1))] },
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => {
            const { &[writes(1, PointedTo(2)), writes(2, INT)] }
        }
        libc::SYS_setsockopt => const { &[reads(3, Argument(4, 1))] },
        libc::SYS_getsockopt => const { &[writes(3, PointedTo(4)), writes(4, INT)] },
        libc::SYS_socketpair => const { &[writes(3, Fixed(8))] },
        libc::SYS_pipe | libc::SYS_pipe2 => const { &[writes(0, Fixed(8))] },
        libc::SYS_open
        | libc::SYS_access
        | libc::SYS_unlink
        | libc::SYS_mkdir
        | libc::SYS_rmdir
        | libc::SYS_chdir
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_creat
        | libc::SYS_chroot
        | libc::SYS_mknod
        | libc::SYS_memfd_create
        | libc::SYS_truncate => const { &[text(0)] },
        libc::SYS_openat
        | libc::SYS_unlinkat
        | libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_fchmodat
        | libc::SYS_fchownat
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_inotify_add_watch => const { &[text(1)] },
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => const { &[text(0), text(1)] },
        libc::SYS_symlinkat => const { &[text(0), text(2)] },
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => const { &[text(1), text(3)] },
        libc::SYS_utimensat => const { &[text(1), reads(2, Fixed(32))] },
        libc::SYS_statfs => const { &[text(0), writes(1, Fixed(120))] },
        libc::SYS_fstatfs => const { &[writes(1, Fixed(120))] },
        libc::SYS_getxattr | libc::SYS_lgetxattr => const { &[text(0), text(1), writes(2, Partial(3))] },
        libc::SYS_fgetxattr => const { &[text(1), writes(2, Partial(3))] },
        libc::SYS_setxattr | libc::SYS_lsetxattr => const { &[text(0), text(1), reads(2, Argument(3, 1))] },
        libc::SYS_fsetxattr => const { &[text(1), reads(2, Argument(3, 1))] },
        libc::SYS_stat | libc::SYS_lstat => const { &[text(0), writes(1, STAT)] },
        libc::SYS_fstat => const { &[writes(1, STAT)] },
        libc::SYS_newfstatat => const { &[text(1), writes(2, STAT)] },
        libc::SYS_statx => const { &[text(1), writes(4, Fixed(256))] },
        libc::SYS_readlink => const { &[text(0), writes(1, Partial(2))] },
        libc::SYS_readlinkat => const { &[text(1), writes(2, Partial(3))] },
        libc::SYS_getcwd => const { &[writes(0, Argument(1, 1))] },
        libc::SYS_getrandom => const { &[writes(0, Partial(1))] },
        libc::SYS_poll => const { &[writes(0, Argument(1, 8))] },
        libc::SYS_epoll_ctl => const { &[reads(3, Fixed(12))] },
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => const { &[writes(1, Argument(2, 12))] },
        libc::SYS_ppoll => const { &[writes(0, Argument(1, 8)), writes(2, TIME), reads(3, SIGNALS)] },
        libc::SYS_clock_gettime | libc::SYS_clock_getres => const { &[writes(1, TIME)] },
        libc::SYS_clock_settime => const { &[reads(1, TIME)] },
        libc::SYS_gettimeofday => const { &[writes(0, TIME), writes(1, Fixed(8))] },
        libc::SYS_time => const { &[writes(0, Fixed(8))] },
        libc::SYS_times => const { &[writes(0, Fixed(32))] },
        libc::SYS_timerfd_settime => const { &[reads(2, Fixed(32)), writes(3, Fixed(32))] },
        libc::SYS_timerfd_gettime | libc::SYS_getitimer => const { &[writes(1, Fixed(32))] },
        libc::SYS_setitimer => const { &[reads(1, Fixed(32)), writes(2, Fixed(32))] },
        libc::SYS_uname => const { &[writes(0, Fixed(390))] },
        libc::SYS_sysinfo => const { &[writes(0, Fixed(112))] },
        libc::SYS_getrlimit => const { &[writes(1, TIME)] },
        libc::SYS_setrlimit => const { &[reads(1, TIME)] },
        libc::SYS_prlimit64 => const { &[reads(2, TIME), writes(3, TIME)] },
        libc::SYS_getresuid | libc::SYS_getresgid => {
            const { &[writes(0, INT), writes(1, INT), writes(2, INT)] }
        }
        libc::SYS_getgroups => const { &[writes(1, Argument(0, 4))] },
        libc::SYS_setgroups => const { &[reads(1, Argument(0, 4))] },
        libc::SYS_getcpu => const { &[writes(0, INT), writes(1, INT)] },
        libc::SYS_sched_getaffinity => const { &[writes(2, Argument(1, 1))] },
        libc::SYS_sched_setaffinity => const { &[reads(2, Argument(1, 1))] },
        libc::SYS_sendfile => const { &[writes(2, Fixed(8))] },
        libc::SYS_copy_file_range | libc::SYS_splice => const { &[writes(1, Fixed(8)), writes(3, Fixed(8))] },
        libc::SYS_rt_sigaction => const { &[reads(1, Fixed(32)), writes(2, Fixed(32))] },
        libc::SYS_rt_sigprocmask => const { &[reads(1, SIGNALS), writes(2, SIGNALS)] },
        libc::SYS_rt_sigpending => const { &[writes(0, SIGNALS)] },
        libc::SYS_rt_sigsuspend => const { &[reads(0, SIGNALS)] },
        libc::SYS_rt_sigtimedwait => const { &[reads(0, SIGNALS), writes(1, Fixed(128)), reads(2, TIME)] },
        libc::SYS_signalfd4 => const { &[reads(1, SIGNALS)] },
        libc::SYS_sigaltstack => const { &[reads(0, Fixed(24)), writes(1, Fixed(24))] },
        libc::SYS_nanosleep => const { &[reads(0, TIME), writes(1, TIME)] },
        libc::SYS_clock_nanosleep => const { &[reads(2, TIME), writes(3, TIME)] },
        libc::SYS_getrusage => const { &[writes(1, Fixed(144))] },
        libc::SYS_waitid => const { &[writes(2, Fixed(128)), writes(4, Fixed(144))] },
        libc::SYS_wait4 => const { &[writes(1, INT), writes(3, Fixed(144))] },
        // Words that threads wait for. Only the address and the value of the word matter.
        libc::SYS_futex => const { &[writes(0, INT), reads(3, TIME), writes(4, INT)] },
        _ => &[],
    }
}
