//! Running a program by `BPF_PROG_TEST_RUN`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

use crate::{Error, Result};

/// Handle to a loaded program. Cheap to share; calls may run concurrently.
pub struct Program {
    fd: OwnedFd,
}

impl Program {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Program { fd }
    }

    /// Runs a raw tracepoint program once on the current CPU with up to twelve arguments; returns its
    /// return value.
    pub fn run(&self, args: &mut [u64]) -> Result<u32> {
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut opts: libbpf_sys::bpf_test_run_opts = unsafe { std::mem::zeroed() };
        opts.sz = size_of_val(&opts) as _;
        opts.ctx_in = args.as_mut_ptr().cast();
        opts.ctx_size_in = size_of_val(args) as _;
        // SAFETY: the descriptor is open, and the options point to `args`, which outlives the call.
        let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &mut opts) };
        if result != 0 {
            return Err(Error::io(
                "cannot run an eBPF program",
                std::io::Error::from_raw_os_error(result.unsigned_abs() as i32),
            ));
        }
        Ok(opts.retval)
    }

    /// Runs a program that sees packets (tc, XDP) on a packet, `repeat` times; returns its last return value and the average duration of
    /// a run.
    pub fn run_packet(&self, packet: &[u8], repeat: u32) -> Result<(u32, Duration)> {
        let mut opts = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            data_in: packet.as_ptr().cast(),
            data_size_in: packet.len() as _,
            repeat: repeat as _,
            ..Default::default()
        };
        // SAFETY: the descriptor is open, and the options point to `packet`, which outlives the call.
        let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &mut opts) };
        if result != 0 {
            let error = std::io::Error::from_raw_os_error(result.unsigned_abs() as i32);
            return Err(Error::io("cannot run an eBPF program on a packet", error));
        }
        Ok((opts.retval, Duration::from_nanos(opts.duration.into())))
    }

    /// Runs a program of the type `syscall` with an argument; returns its return value.
    pub fn run_syscall<T>(&self, argument: &mut T) -> Result<u32> {
        let mut opts = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            ctx_in: (argument as *mut T).cast(),
            ctx_size_in: size_of::<T>() as _,
            ..Default::default()
        };
        // SAFETY: the descriptor is open, and the options point to `argument`, which outlives the call and is plain data.
        let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &mut opts) };
        if result != 0 {
            let error = std::io::Error::from_raw_os_error(result.unsigned_abs() as i32);
            return Err(Error::io("cannot run an eBPF program", error));
        }
        Ok(opts.retval)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
