//! Continuing in ring 3, at the instruction where the guest was.

use kvm_bindings::kvm_regs;

use super::fatal::{Fatal, fatal};
use super::system_call::out_of_entry;
use crate::arch::instructions::syscall;
use crate::arch::stubs::bedplate_ring0_resume_call;
use crate::arch::xstate;
use crate::handlers::signal;
use crate::process::local::CpuLocal;

const KVM_GET_XSAVE: u64 = 0x9000_aea4;

/// Continues behind the `out` of a thread that leaves. Leaving is a function call, so only the callee-saved
/// registers are restored.
pub fn resume_left(local: &CpuLocal, regs: &kvm_regs) -> ! {
    const OUT_BYTES: u64 = 2;
    let regs = kvm_regs { rip: regs.rip + OUT_BYTES, ..*regs };
    local.end_session();
    signal::hand_back(local);
    // SAFETY: the thread asked for it, and nothing is on the host stack but this.
    unsafe { bedplate_ring0_resume_call(&raw const regs) }
}

/// Continues in the middle of arbitrary code. If the instruction faults in ring 3, the thread gets the right
/// signal.
pub fn resume_interrupted(local: &CpuLocal, regs: &kvm_regs) -> ! {
    let area = local.vectors.get();
    // SAFETY: KVM writes 4096 bytes to the area, which is its owner's.
    let result =
        unsafe { syscall(libc::SYS_ioctl as u64, [local.fd as u64, KVM_GET_XSAVE, area as u64, 0, 0, 0]) };
    if result != 0 {
        fatal(Fatal::VectorRegisters, local, regs);
    }
    resume(local, regs)
}

/// Continues at a trap whose entry saved the vector registers at `saved`.
pub fn resume_trapped(local: &CpuLocal, regs: &kvm_regs, saved: u64) -> ! {
    // SAFETY: the entry saved at most this many bytes there, on the trap's stack. The area belongs to this
    // processor's owner.
    unsafe {
        let bytes = xstate::size_of_features(local.process().features()).min(3 << 10);
        std::ptr::copy_nonoverlapping(saved as *const u8, local.vectors.get().cast::<u8>(), bytes);
    }
    resume(local, regs)
}

fn resume(local: &CpuLocal, regs: &kvm_regs) -> ! {
    local.counters.resumed_natively.increment();
    local.end_session();
    signal::hand_back(local);
    let process = local.process();
    let regs = out_of_entry(local, regs);
    // SAFETY: the registers are the guest's, which is code of this thread. The area contains its vector registers.
    // Nothing on the host stack is needed any more.
    unsafe { xstate::resume(&regs, &mut *local.vectors.get(), process.features(), process.native_features()) }
}
