//! System calls: shown to a handler in ring 0 before Linux is asked.
//!
//! The handler runs on a stack of its own. System calls that it makes itself go straight to Linux.

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::stubs;
use crate::arch::{control, instructions};
use crate::cpu::Cpu;
use crate::process::local::CpuLocal;

/// A system call.
#[derive(Debug)]
#[repr(C)]
pub struct SyscallFrame {
    rbx: u64,
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    rflags: u64,
    /// Where the code goes on.
    pub rip: u64,
    /// The caller's stack pointer.
    pub rsp: u64,
}

/// What happens with a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Linux is asked, with the number and the arguments that are in the frame now.
    Proxy,
    /// This is the result; Linux is not asked. Errors are negative errnos: `Return(-libc::EPERM as i64)` refuses.
    Return(i64),
}

/// A handler.
pub type SyscallHandler = fn(Cpu, &mut SyscallFrame) -> Answer;

impl SyscallFrame {
    /// Asks Linux now, so that the handler sees the result, which it then returns.
    ///
    /// Not for calls that do not return like others: those of [`is_ordinary`](Self::is_ordinary) are.
    pub fn proxy(&self) -> i64 {
        debug_assert!(self.is_ordinary());
        // SAFETY: the program asked for this call, and could make it.
        unsafe { stubs::bedplate_ring0_proxy_syscall(self) }
    }

    /// Whether the call returns once, to where it was made: not clone, fork, exit and the like.
    pub fn is_ordinary(&self) -> bool {
        const OTHERS: [i64; 8] = [
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_rt_sigreturn,
            libc::SYS_execve,
        ];
        !OTHERS.contains(&(self.number as i64))
    }
}

static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

fn handler() -> Option<SyscallHandler> {
    let pointer = HANDLER.load(Ordering::Acquire);
    // SAFETY: only `set_syscall_handler` stores here, and stores such functions.
    (!pointer.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), SyscallHandler>(pointer) })
}

/// Sets the handler of system calls, or takes it away. This thread uses it from now on; others that are in ring 0
/// while there was none before use it when they enter again.
pub fn set_syscall_handler(handler: Option<SyscallHandler>) {
    HANDLER.store(handler.map_or(std::ptr::null_mut(), |handler| handler as *mut ()), Ordering::Release);
    if let Some(local) = CpuLocal::current() {
        let entry = entry();
        local.syscall_entry.store(entry, Ordering::Relaxed);
        // SAFETY: in ring 0; the entry is one of ours.
        unsafe { instructions::write_msr(control::MSR_LSTAR, entry) };
    }
}

/// The entry that LSTAR points to.
pub(crate) fn entry() -> u64 {
    match handler() {
        None => stubs::bedplate_ring0_syscall as *const () as u64,
        Some(_) => stubs::bedplate_ring0_syscall_handled as *const () as u64,
    }
}

/// Asks the handler. Returns 1 if the frame's number is the result, 0 if Linux is to be asked.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_handle_syscall(frame: &mut SyscallFrame) -> u32 {
    let (Some(handle), Some(local)) = (handler(), CpuLocal::current()) else { return 0 };
    match handle(Cpu::new(local), frame) {
        Answer::Proxy => 0,
        Answer::Return(result) => {
            local.counters.system_calls_answered.increment();
            frame.number = result as u64;
            1
        }
    }
}
