//! Going on natively: in ring 3, at the instruction where the guest was.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::system_call::out_of_entry;
use crate::arch::frame::TrapFrame;
use crate::arch::instructions::syscall;
use crate::arch::stubs::bedplate_ring0_resume_call;
use crate::arch::xstate;
use crate::handlers::signal;
use crate::process::local::CpuLocal;

const KVM_GET_XSAVE: u64 = 0x9000_aea4;
const KVM_GET_SREGS: u64 = 0x8138_ae83;

/// Behind the `out` of a thread that leaves: a function call, so that the callee-saved registers are all there is.
pub fn resume_left(local: &CpuLocal, regs: &kvm_regs) -> ! {
    const OUT_BYTES: u64 = 2;
    let regs = kvm_regs { rip: regs.rip + OUT_BYTES, ..*regs };
    local.end_session();
    signal::hand_back(local);
    // SAFETY: the thread asked for it, and nothing is on the host stack but this.
    unsafe { bedplate_ring0_resume_call(&raw const regs) }
}

/// In the middle of arbitrary code. What it does natively decides what happens: the right signal, or nothing.
pub fn resume_interrupted(local: &CpuLocal, regs: &kvm_regs) -> ! {
    let area = local.vectors.get();
    // SAFETY: KVM writes 4096 bytes to the area, which is its owner's.
    let result =
        unsafe { syscall(libc::SYS_ioctl as u64, [local.fd as u64, KVM_GET_XSAVE, area as u64, 0, 0, 0]) };
    if result != 0 {
        fatal(Fatal::VectorRegisters, local, &regs.into());
    }
    resume(local, regs)
}

/// At a trap, whose entry saved the vector registers at `saved`.
pub fn resume_trapped(local: &CpuLocal, regs: &kvm_regs, saved: u64) -> ! {
    // SAFETY: the entry saved at most so much there, on the trap's stack; the area is its owner's.
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
    // SAFETY: the registers are the guest's, which is code of this thread; its vector registers were put into the
    // area; nothing on the host stack is needed any more.
    unsafe { xstate::resume(&regs, &mut *local.vectors.get(), process.features(), process.native_features()) }
}

/// Why a process had to be ended: its registers are lost. A debugger finds it in `bedplate_ring0_last_fatal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fatal {
    /// Nothing happened.
    None,
    /// A fault while a fault was delivered.
    DoubleFault,
    /// The processor shut down.
    Shutdown,
    /// Broken hardware.
    MachineCheck,
    /// KVM did not return the vector registers.
    VectorRegisters,
}

/// See [`Fatal`].
#[unsafe(export_name = "bedplate_ring0_last_fatal")]
pub static LAST_FATAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(Fatal::None as u32);

/// Ends the process with SIGABRT, after a line that says why and where: there are no registers to go on with.
pub fn fatal(why: Fatal, local: &CpuLocal, at: &Place) -> ! {
    LAST_FATAL.store(why as u32, Ordering::SeqCst);
    let mut line = Line::default();
    let what = match why {
        Fatal::None => "unknown",
        Fatal::DoubleFault => "a fault while a fault was delivered (a bad stack?)",
        Fatal::Shutdown => "the processor shut down",
        Fatal::MachineCheck => "the hardware reported a machine check",
        Fatal::VectorRegisters => "KVM did not return the vector registers",
    };
    let mut sregs = kvm_sregs::default();
    // SAFETY: KVM writes to the variable.
    unsafe {
        syscall(libc::SYS_ioctl as u64, [local.fd as u64, KVM_GET_SREGS, (&raw mut sregs) as u64, 0, 0, 0])
    };
    let (number, cr2, cr3) = (local.number, sregs.cr2, sregs.cr3);
    let _ = writeln!(
        line,
        "bedplate-ring0: vCPU {number}: {what}; rip={:#x} rsp={:#x} error={:#x} cr2={cr2:#x} cr3={cr3:#x}",
        at.rip, at.rsp, at.error
    );
    // SAFETY: writes what is in the line.
    unsafe {
        syscall(libc::SYS_write as u64, [2, line.bytes.as_ptr() as u64, line.used as u64, 0, 0, 0]);
        libc::abort()
    }
}

/// Where the guest was when it could not go on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    pub rip: u64,
    pub rsp: u64,
    pub error: u64,
}

impl From<&kvm_regs> for Place {
    fn from(regs: &kvm_regs) -> Self {
        Self { rip: regs.rip, rsp: regs.rsp, error: 0 }
    }
}

impl From<&TrapFrame> for Place {
    fn from(frame: &TrapFrame) -> Self {
        Self { rip: frame.rip, rsp: frame.rsp, error: frame.error }
    }
}

/// A line of text that needs no memory: nothing is known about the state of the program that ends.
struct Line {
    bytes: [u8; 256],
    used: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 256], used: 0 }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let free = &mut self.bytes[self.used..];
        let bytes = text.len().min(free.len());
        free[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
        self.used += bytes;
        Ok(())
    }
}
