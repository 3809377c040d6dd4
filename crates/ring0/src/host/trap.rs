//! Traps that no handler in ring 0 handled.

use std::sync::atomic::Ordering;

use kvm_bindings::kvm_regs;

use super::fatal::{Fatal, fatal};
use super::native::resume_trapped;
use crate::arch::frame::{TrapFrame, page_fault, vector};
use crate::arch::traps::XSAVE_BYTES;
use crate::memory::{ADDRESS_END, maps};
use crate::process::local::CpuLocal;

/// Adds the missing window, so that the guest can retry the instruction. If no window is missing, makes the thread
/// continue in ring 3.
pub fn unhandled(local: &CpuLocal, regs: &kvm_regs) {
    // SAFETY: the trap entry passes its frame, on a stack of this processor's.
    let frame = unsafe { &*(regs.rdi as *const TrapFrame) };
    let address = regs.rsi;
    let mut native = frame.to_kvm();
    match frame.vector {
        vector::PAGE_FAULT if add_window(local, frame, address) => return,
        vector::DOUBLE_FAULT => fatal(Fatal::DoubleFault, local, &native),
        vector::MACHINE_CHECK => fatal(Fatal::MachineCheck, local, &native),
        // The processor is past these instructions. They are executed again in ring 3.
        vector::BREAKPOINT => native.rip -= 1,
        vector::FIRST_INTERRUPT.. => native.rip -= 2,
        _ => {}
    }
    // The trap entry saved the vector registers below the frame, at an aligned address.
    let saved = (regs.rdi - XSAVE_BYTES) & !63;
    resume_trapped(local, &native, saved)
}

fn add_window(local: &CpuLocal, frame: &TrapFrame, address: u64) -> bool {
    let windows = local.process().windows();
    if frame.error & page_fault::PRESENT != 0 || address >= ADDRESS_END || windows.is_private(address) {
        return false;
    }
    if windows.physical_address(address).is_some() {
        // Another thread has just added the window, or the page is missing in tables that the program has changed.
        let first = local.retried.swap(address, Ordering::Relaxed) != address;
        return first && windows.is_whole(address);
    }
    if !maps::is_mapped(address) || windows.add(address, 1).is_err() {
        return false;
    }
    local.counters.windows_added.increment();
    true
}
