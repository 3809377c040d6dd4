//! Traps that ring 0 did not handle.

use std::sync::atomic::Ordering;

use kvm_bindings::kvm_regs;

use super::fatal::{Fatal, fatal};
use super::native::resume_trapped;
use crate::arch::frame::{TrapFrame, page_fault, vector};
use crate::arch::traps::XSAVE_BYTES;
use crate::memory::{ADDRESS_END, maps};
use crate::process::local::CpuLocal;

/// Adds the window that is missing, so that the instruction can be tried again; or lets the thread go on natively.
pub fn unhandled(local: &CpuLocal, regs: &kvm_regs) {
    // SAFETY: the trap entry passes its frame, on a stack of this processor's.
    let frame = unsafe { &*(regs.rdi as *const TrapFrame) };
    let address = regs.rsi;
    let mut native = frame.to_kvm();
    match frame.vector {
        vector::PAGE_FAULT if add_window(local, frame, address) => return,
        vector::DOUBLE_FAULT => fatal(Fatal::DoubleFault, local, &native),
        vector::MACHINE_CHECK => fatal(Fatal::MachineCheck, local, &native),
        // The processor has gone past these; they happen again natively.
        vector::BREAKPOINT => native.rip -= 1,
        vector::FIRST_INTERRUPT.. => native.rip -= 2,
        _ => {}
    }
    // The entry aligned its stack pointer below the frame for the vector registers.
    let saved = (regs.rdi - XSAVE_BYTES) & !63;
    resume_trapped(local, &native, saved)
}

fn add_window(local: &CpuLocal, frame: &TrapFrame, address: u64) -> bool {
    let windows = local.process().windows();
    if frame.error & page_fault::PRESENT != 0 || address >= ADDRESS_END || windows.is_private(address) {
        return false;
    }
    if windows.physical_address(address).is_some() {
        // Somebody else has just added it; or the page is missing in tables that somebody has changed.
        let first = local.retried.swap(address, Ordering::Relaxed) != address;
        return first && windows.is_whole(address);
    }
    if !maps::is_mapped(address) || windows.add(address, 1).is_err() {
        return false;
    }
    local.counters.windows_added.increment();
    true
}
