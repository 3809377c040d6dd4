//! The error type of this crate. Each message says what is wrong and, where possible, how to fix it.

use std::io;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `/dev/kvm` could not be opened.
    #[error("/dev/kvm: {source}; {}", open_advice(.source))]
    Open {
        /// The operating system's reason.
        source: io::Error,
    },
    /// A request to KVM failed.
    #[error("KVM: {what}: {source}{}", kvm_advice(.source))]
    Kvm {
        /// The request to KVM.
        what: &'static str,
        /// KVM's reason.
        source: io::Error,
    },
    /// A feature that ring 0 needs is missing.
    #[error("{feature} is missing; {advice}")]
    Missing {
        /// The missing feature.
        feature: &'static str,
        /// Advice for the user.
        advice: &'static str,
    },
    /// Memory for the library itself could not be mapped.
    #[error("mapping memory for {what}: {source}")]
    Memory {
        /// The purpose of the memory.
        what: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// `/proc/self/maps` could not be read.
    #[error("/proc/self/maps: {source}; ring 0 needs /proc mounted")]
    Maps {
        /// The operating system's reason.
        source: io::Error,
    },
    /// The process has memory in too many windows of 1 GiB: more than fit into the processor's physical addresses,
    /// or more than KVM has memory slots.
    #[error(
        "memory in {needed} windows of 1 GiB, but there is room for {available}: keep mappings closer together, or let a \
         virtual machine see the host's address width"
    )]
    AddressSpace {
        /// Number of windows that would be in use.
        needed: usize,
        /// Number of available windows.
        available: usize,
    },
    /// The limit of virtual processors is reached. A thread that has left ring 0 still owns its processor until it
    /// ends.
    #[error("all {limit} virtual processors are in use: let threads end, or raise Builder::max_cpus")]
    TooManyThreads {
        /// The limit.
        limit: u32,
    },
    /// The process has a [`Process`](crate::Process) already.
    #[error("this process has its ring 0 already; there is one a process")]
    AlreadyBuilt,
    /// The caller interrupted code in ring 0: it runs in a signal handler, or in a function that ring 0 called in
    /// ring 3.
    #[error("ring 0 cannot be entered from a signal handler, or from native code, that interrupted it")]
    Interrupted,
    /// The process is a forked child of the process that built the [`Process`](crate::Process).
    #[error("a forked child has to build a Process of its own")]
    Forked,
    /// A range of memory is empty, not aligned, or outside the process's half of the address space.
    #[error("bad range of memory: {bytes} bytes at {address:#x}: {why}")]
    BadRange {
        /// Start of the range.
        address: u64,
        /// Length of the range in bytes.
        bytes: u64,
        /// The reason.
        why: &'static str,
    },
    /// The limit of ranges with a page-fault handler is reached.
    #[error(
        "all {limit} ranges with page faults of their own are in use: release one, or claim one range around several"
    )]
    TooManyRanges {
        /// The limit.
        limit: usize,
    },
    /// The limit of libraries that handle system calls is reached.
    #[error("{limit} libraries handle system calls already")]
    TooManyLayers {
        /// The limit.
        limit: usize,
    },
    /// This vector cannot have a handler.
    #[error("vector {vector} cannot have a handler: {why}")]
    BadVector {
        /// The vector.
        vector: u8,
        /// The use of the vector.
        why: &'static str,
    },
    /// The handler of SIGSEGV cannot be installed.
    #[error("handling SIGSEGV, which takes threads into ring 0: {source}")]
    Segv {
        /// The reason.
        source: io::Error,
    },
    /// This signal cannot be handled in ring 0.
    #[error("signal {signal} cannot be handled in ring 0")]
    BadSignal {
        /// The signal.
        signal: i32,
    },
    /// No thread owns this processor.
    #[error("no thread has processor {number}")]
    NoSuchCpu {
        /// The processor's number.
        number: u32,
    },
    /// A pool of frames could not be made.
    #[error(transparent)]
    Pool(#[from] crate::frames::PoolError),
    /// The operation needs ring 0, and the calling thread is in ring 3.
    #[error("this thread is not in ring 0")]
    NotInRing0,
}

impl Error {
    /// Makes an error of the errno of a KVM request.
    pub(crate) fn kvm(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
        move |error| Error::Kvm { what, source: io::Error::from_raw_os_error(error.errno()) }
    }

    /// Makes an error of an errno that a raw system call returned.
    pub(crate) fn kvm_errno(what: &'static str, errno: i32) -> Error {
        Error::Kvm { what, source: io::Error::from_raw_os_error(errno) }
    }

    /// The closest errno, for the C interface.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Open { source }
            | Error::Kvm { source, .. }
            | Error::Memory { source, .. }
            | Error::Maps { source }
            | Error::Segv { source } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Missing { .. } => libc::EOPNOTSUPP,
            Error::AddressSpace { .. } | Error::TooManyRanges { .. } | Error::TooManyLayers { .. } => {
                libc::ENOSPC
            }
            Error::TooManyThreads { .. } => libc::EAGAIN,
            Error::AlreadyBuilt => libc::EEXIST,
            Error::Interrupted => libc::EBUSY,
            Error::Forked => libc::ECHILD,
            Error::BadRange { .. } | Error::BadVector { .. } | Error::BadSignal { .. } => libc::EINVAL,
            Error::NoSuchCpu { .. } => libc::ESRCH,
            Error::NotInRing0 => libc::EPERM,
            Error::Pool(_) => libc::ENOMEM,
        }
    }
}

fn open_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "load kvm_intel or kvm_amd, or pass the device into the container",
        Some(libc::EACCES | libc::EPERM) => "run as root, or join the group that owns it",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files",
        _ => "see what dmesg says about kvm",
    }
}

fn kvm_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) => {
            "; a seccomp filter may forbid ioctl: it has to let KVM's requests through"
        }
        _ => "",
    }
}

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
