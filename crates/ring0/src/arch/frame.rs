//! The registers of interrupted code, as the trap entries push them.

use kvm_bindings::kvm_regs;

/// The registers of interrupted code. A handler may change them; the code continues with the changed values.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct TrapFrame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rax: u64,
    /// The vector: 14 is a page fault.
    pub vector: u64,
    /// The processor's error code; 0 for vectors without one.
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// Named vectors.
pub mod vector {
    /// `#DB`: single steps and watch points.
    pub const DEBUG: u64 = 1;
    /// Non-maskable interrupt.
    pub const NMI: u64 = 2;
    /// `#BP`: `int3`.
    pub const BREAKPOINT: u64 = 3;
    /// `#UD`: an invalid instruction.
    pub const INVALID_OPCODE: u64 = 6;
    /// `#DF`: a fault could not be delivered.
    pub const DOUBLE_FAULT: u64 = 8;
    /// `#GP`.
    pub const GENERAL_PROTECTION: u64 = 13;
    /// `#PF`.
    pub const PAGE_FAULT: u64 = 14;
    /// `#MC`: a hardware failure.
    pub const MACHINE_CHECK: u64 = 18;
    /// The first vector that is an interrupt, not an exception.
    pub const FIRST_INTERRUPT: u64 = 32;
}

/// Bits of a page fault's error code.
pub mod page_fault {
    /// The page was present, but the access lacked a right.
    pub const PRESENT: u64 = 1;
    /// The access was a write.
    pub const WRITE: u64 = 2;
    /// The access was an instruction fetch.
    pub const FETCH: u64 = 16;
}

impl TrapFrame {
    /// The registers in KVM's form, to continue the code outside the handler.
    pub(crate) fn to_kvm(self) -> kvm_regs {
        kvm_regs {
            rax: self.rax,
            rbx: self.rbx,
            rcx: self.rcx,
            rdx: self.rdx,
            rsi: self.rsi,
            rdi: self.rdi,
            rsp: self.rsp,
            rbp: self.rbp,
            r8: self.r8,
            r9: self.r9,
            r10: self.r10,
            r11: self.r11,
            r12: self.r12,
            r13: self.r13,
            r14: self.r14,
            r15: self.r15,
            rip: self.rip,
            rflags: self.rflags,
        }
    }
}
