//! Ending the process where a guest has no registers left to go on with.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use kvm_bindings::kvm_regs;

use crate::arch::instructions::syscall;
use crate::process::local::CpuLocal;

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

impl Fatal {
    fn text(self) -> &'static str {
        match self {
            Fatal::None => "nothing happened",
            Fatal::DoubleFault => "a fault while a fault was delivered (a bad stack?)",
            Fatal::Shutdown => "the processor shut down",
            Fatal::MachineCheck => "the hardware reported a machine check",
            Fatal::VectorRegisters => "KVM did not return the vector registers",
        }
    }
}

/// See [`Fatal`].
#[unsafe(export_name = "bedplate_ring0_last_fatal")]
pub static LAST_FATAL: AtomicU32 = AtomicU32::new(Fatal::None as u32);

/// Ends the process with SIGABRT, after a line that says why and where. (KVM on AMD resets the registers of a processor
/// that shut down: they say nothing then.)
pub fn fatal(why: Fatal, local: &CpuLocal, regs: &kvm_regs) -> ! {
    LAST_FATAL.store(why as u32, Ordering::SeqCst);
    // Nothing is known about the state of the program that ends: no memory is asked for, and no lock.
    let mut line = [0; 200];
    let mut rest = &mut line[..];
    let _ = writeln!(
        rest,
        "bedplate-ring0: vCPU {}: {}; rip={:#x} rsp={:#x} tables={:#x}",
        local.number,
        why.text(),
        regs.rip,
        regs.rsp,
        local.root.load(Ordering::Relaxed)
    );
    let left = rest.len();
    // SAFETY: writes what is in the line; ending the process has no conditions.
    unsafe {
        syscall(libc::SYS_write as u64, [2, line.as_ptr() as u64, (line.len() - left) as u64, 0, 0, 0]);
        libc::abort()
    }
}
