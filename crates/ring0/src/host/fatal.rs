//! Ending the process when the guest's registers are lost and it cannot continue.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use kvm_bindings::kvm_regs;

use crate::arch::instructions::syscall;
use crate::process::local::CpuLocal;

/// The reason why the process had to be ended. A debugger finds the value in `bedplate_ring0_last_fatal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fatal {
    /// Nothing happened.
    None,
    /// A fault while a fault was delivered.
    DoubleFault,
    /// The processor shut down (triple fault).
    Shutdown,
    /// A hardware failure.
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

/// The reason of the last fatal error. See [`Fatal`].
#[unsafe(export_name = "bedplate_ring0_last_fatal")]
pub static LAST_FATAL: AtomicU32 = AtomicU32::new(Fatal::None as u32);

/// Ends the process with SIGABRT, after a line on standard error that says why and where. On AMD, KVM resets the
/// registers of a processor that shut down, so they have no meaning then.
pub fn fatal(why: Fatal, local: &CpuLocal, regs: &kvm_regs) -> ! {
    LAST_FATAL.store(why as u32, Ordering::SeqCst);
    // The state of the program is unknown, so this code neither allocates memory nor takes locks.
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
