//! What can go wrong, and what a person can do about it.

use std::io;

/// Why something did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `/dev/kvm` could not be opened.
    #[error("/dev/kvm: {source}; {}", open_advice(.source))]
    Open {
        /// What opening it said.
        source: io::Error,
    },
    /// A request to KVM failed.
    #[error("KVM: {what}: {source}{}", kvm_advice(.source))]
    Kvm {
        /// What was asked for.
        what: &'static str,
        /// The answer.
        source: io::Error,
    },
    /// Something that ring 0 needs is not there.
    #[error("{feature} is missing; {advice}")]
    Missing {
        /// What is missing.
        feature: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Memory for the library itself could not be mapped.
    #[error("mapping memory for {what}: {source}")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// `/proc/self/maps` could not be read.
    #[error("/proc/self/maps: {source}; ring 0 needs /proc mounted")]
    Maps {
        /// What reading it said.
        source: io::Error,
    },
    /// The process has memory in more windows of 1 GiB than the processor's physical addresses, or KVM's slots,
    /// have room for.
    #[error(
        "memory in {needed} windows of 1 GiB, but there is room for {available}: keep mappings closer together, or let a \
         virtual machine see the host's address width"
    )]
    AddressSpace {
        /// How many windows would be in use.
        needed: usize,
        /// How many there can be.
        available: usize,
    },
    /// As many threads as there can be are in ring 0, or were and still own their processor.
    #[error("all {limit} virtual processors are in use: let threads end, or raise Builder::max_cpus")]
    TooManyThreads {
        /// How many there can be.
        limit: u32,
    },
    /// The process has been built before.
    #[error("this process has its ring 0 already; there is one a process")]
    AlreadyBuilt,
    /// The caller runs on top of code that is in ring 0: in a signal handler, or in a function that ring 0 called
    /// natively.
    #[error("ring 0 cannot be entered from a signal handler, or from native code, that interrupted it")]
    Interrupted,
    /// The process is a forked child of the one that built it.
    #[error("a forked child has to build a Process of its own")]
    Forked,
    /// A range that is empty, not aligned, or outside of the process's half of the address space.
    #[error("bad range of memory: {bytes} bytes at {address:#x}: {why}")]
    BadRange {
        /// Where it begins.
        address: u64,
        /// How long it is.
        bytes: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// As many ranges as there can be have a handler of page faults.
    #[error(
        "all {limit} ranges with page faults of their own are in use: release one, or claim one range around several"
    )]
    TooManyRanges {
        /// How many there can be.
        limit: usize,
    },
    /// As many libraries as there can be handle system calls.
    #[error("{limit} libraries handle system calls already")]
    TooManyLayers {
        /// How many there can be.
        limit: usize,
    },
    /// A vector that cannot have a handler.
    #[error("vector {vector} cannot have a handler: {why}")]
    BadVector {
        /// The vector.
        vector: u8,
        /// What it is used for.
        why: &'static str,
    },
    /// SIGSEGV cannot be handled.
    #[error("handling SIGSEGV, which takes threads into ring 0: {source}")]
    Segv {
        /// Why.
        source: io::Error,
    },
    /// A signal that cannot be handled in ring 0.
    #[error("signal {signal} cannot be handled in ring 0")]
    BadSignal {
        /// The signal.
        signal: i32,
    },
    /// A processor that no thread has.
    #[error("no thread has processor {number}")]
    NoSuchCpu {
        /// Its number.
        number: u32,
    },
    /// A pool of frames could not be made.
    #[error(transparent)]
    Pool(#[from] crate::frames::PoolError),
    /// Something that only ring 0 can do was asked of a thread that is not there.
    #[error("this thread is not in ring 0")]
    NotInRing0,
}

impl Error {
    /// From the errno of a KVM request.
    pub(crate) fn kvm(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
        move |error| Error::Kvm { what, source: io::Error::from_raw_os_error(error.errno()) }
    }

    /// From a raw system call's negative result.
    pub(crate) fn kvm_errno(what: &'static str, errno: i32) -> Error {
        Error::Kvm { what, source: io::Error::from_raw_os_error(errno) }
    }

    /// The errno that says it best, for the C interface.
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
