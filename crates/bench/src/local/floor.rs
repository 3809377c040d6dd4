//! The floor of driving a program from user space: the cost of one `bpf(BPF_PROG_TEST_RUN)` call of
//! a program that does nothing. With one operation per call, no engine can be faster than this.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_insn};

use crate::cpu::thread_cpu_ns;
use crate::sample::Samples;
use crate::{Error, Result};

/// A loaded program of two instructions: `return 0`.
struct Empty(OwnedFd);

impl Empty {
    fn load() -> io::Result<Empty> {
        // SAFETY: an instruction is plain data; all zeros is a valid value that is filled in below.
        let mut insns: [bpf_insn; 2] = unsafe { zeroed() };
        insns[0].code = (libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K) as u8;
        insns[1].code = (libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT) as u8;
        // SAFETY: the strings are NUL-terminated, `insns` outlives the call and has the stated length,
        // and options may be null.
        let fd = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT,
                c"bench_floor".as_ptr(),
                c"Dual MIT/GPL".as_ptr(),
                insns.as_ptr(),
                insns.len() as _,
                std::ptr::null_mut(),
            )
        };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the descriptor was just opened and nothing else owns it.
        Ok(Empty(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn call(&self, context: &mut [u64; 2]) -> io::Result<()> {
        // SAFETY: all zeros is the documented initial state of the options.
        let mut options: libbpf_sys::bpf_test_run_opts = unsafe { zeroed() };
        options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as _;
        options.ctx_in = context.as_mut_ptr().cast();
        options.ctx_size_in = size_of_val(context) as u32;
        // SAFETY: the options and the context they point to outlive the call.
        let r = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), &mut options) };
        if r < 0 { Err(io::Error::from_raw_os_error(-r)) } else { Ok(()) }
    }
}

/// CPU time of one call in nanoseconds: the samples of `rounds` rounds of `calls` calls.
pub fn per_call_ns(rounds: usize, calls: u32) -> Result<Samples> {
    let empty = Empty::load().map_err(Error::io("load an empty eBPF program"))?;
    let mut context = [0u64; 2];
    let mut round = || -> io::Result<f64> {
        let start = thread_cpu_ns();
        for _ in 0..calls {
            empty.call(&mut context)?;
        }
        Ok((thread_cpu_ns() - start) as f64 / f64::from(calls))
    };
    round().map_err(Error::io("run an empty eBPF program"))?;
    (0..rounds).map(|_| round().map_err(Error::io("run an empty eBPF program"))).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_empty_call_has_a_cost() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let floor = super::per_call_ns(3, 1000).unwrap();
        assert_eq!(floor.values().len(), 3);
        assert!(floor.min() > 10.0, "a system call takes longer than {floor:?} ns");
    }
}
