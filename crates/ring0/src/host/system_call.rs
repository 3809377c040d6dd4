//! System calls. The same thread makes them for the guest. They are unchanged, except for the few that concern the
//! thread's own registers.

use std::sync::atomic::Ordering;

use kvm_bindings::{KVM_SYNC_X86_SREGS, kvm_regs, kvm_run, kvm_sregs};

use super::clone;
use super::signals::BlockedSignals;
use crate::arch::control;
use crate::arch::instructions::syscall;
use crate::arch::stubs::{
    GIVEN_UP, bedplate_ring0_exit_thread, bedplate_ring0_interruptible, bedplate_ring0_sigreturn,
    bedplate_ring0_syscall, finish_call,
};
use crate::process::local::CpuLocal;

const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const KVM_GET_SREGS: u64 = 0x8138_ae83;
const SYSCALL_BYTES: u64 = 2;

/// Makes the call that the registers describe, and stores its result where the guest reads it. Returns whether
/// `regs` changed.
pub fn proxy(local: &CpuLocal, regs: &mut kvm_regs, run: *mut kvm_run) -> bool {
    local.counters.system_calls.increment();
    let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    let result = match i64::try_from(regs.rax) {
        Ok(libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork) => {
            clone::start_child(local, regs)
        }
        Ok(libc::SYS_exit) => exit(local, regs.rdi),
        // This is the end of a signal handler that started in ring 3 and entered ring 0. The interrupted code was
        // in ring 3.
        Ok(libc::SYS_rt_sigreturn) => {
            local.end_session();
            // SAFETY: the guest's stack pointer points to the frame, or the kernel sends SIGSEGV.
            unsafe { bedplate_ring0_sigreturn(regs.rsp) }
        }
        // In ring 0, GS points to the processor's data.
        Ok(libc::SYS_arch_prctl) if arguments[0] == ARCH_SET_GS => -i64::from(libc::EPERM),
        Ok(libc::SYS_arch_prctl) if arguments[0] == ARCH_SET_FS => set_fs(local, arguments[1], run),
        // With interrupts off, the guest could not handle a signal before it makes the call again.
        // SAFETY: the guest is code of this process, which could make the call itself in ring 3.
        _ if regs.rflags & control::INTERRUPTS == 0 => unsafe { syscall(regs.rax, arguments) },
        // SAFETY: as above.
        _ => unsafe { bedplate_ring0_interruptible(regs.rax, &raw const arguments, local.signals.word()) },
    };
    if result == GIVEN_UP {
        regs.rip = regs.rcx - SYSCALL_BYTES;
        return true;
    }
    local.syscall_result.store(result as u64, Ordering::Relaxed);
    false
}

/// The registers for continuing in ring 3. If the guest is in ring 0's entry of system calls, the result points to
/// the call or behind it.
pub fn out_of_entry(local: &CpuLocal, regs: &kvm_regs) -> kvm_regs {
    if finish_call(regs.rip) {
        return kvm_regs { rax: local.syscall_result.load(Ordering::Relaxed), rip: regs.rcx, ..*regs };
    }
    let not_yet_made = regs.rip == bedplate_ring0_syscall as *const () as u64;
    kvm_regs { rip: if not_yet_made { regs.rcx - SYSCALL_BYTES } else { regs.rip }, ..*regs }
}

/// Sets the FS base in ring 3 and in ring 0.
fn set_fs(local: &CpuLocal, base: u64, run: *mut kvm_run) -> i64 {
    // SAFETY: as the guest asked. The host part does not use thread-local variables.
    let result = unsafe { syscall(libc::SYS_arch_prctl as u64, [ARCH_SET_FS, base, 0, 0, 0, 0]) };
    if result != 0 {
        return result;
    }
    let mut sregs = kvm_sregs::default();
    let arguments = [local.fd as u64, KVM_GET_SREGS, (&raw mut sregs) as u64, 0, 0, 0];
    // SAFETY: KVM writes to the variable, and gets its own registers back with one changed.
    unsafe {
        let result = syscall(libc::SYS_ioctl as u64, arguments);
        if result != 0 {
            return result;
        }
        sregs.fs.base = base;
        (*run).s.regs.sregs = sregs;
        (*run).kvm_dirty_regs |= u64::from(KVM_SYNC_X86_SREGS);
    }
    0
}

/// Ends the thread. Another thread may get the processor at once, with the stack that this code runs on. The last
/// steps therefore use no stack, and signals are blocked because their handlers would need one.
fn exit(local: &CpuLocal, status: u64) -> ! {
    std::mem::forget(BlockedSignals::new());
    local.end_session();
    // SAFETY: nothing on this stack is needed any more; the thread ends.
    unsafe { bedplate_ring0_exit_thread(status, local.owner.as_ptr()) }
}
