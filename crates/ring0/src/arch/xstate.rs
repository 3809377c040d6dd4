//! Vector and floating-point registers in memory: the XSAVE area, and the signal frame with which a thread
//! continues in ring 3.
//!
//! The frame has the form that `rt_sigreturn` takes. The kernel loads all registers from it at once, so the stack
//! of the interrupted code is not touched in any state.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;

use kvm_bindings::kvm_regs;

use super::instructions::syscall;
use super::stubs::bedplate_ring0_sigreturn;

/// The assembler macro `ZERO_XSAVE_HEADER` clears the header of an XSAVE area at RSP; it changes RAX. It is needed
/// because XSAVE does not write the reserved bytes of the header and XRSTOR refuses values other than zero there.
///
/// It must come first in every `global_asm!` that uses it. It may be defined more than once, because several blocks
/// may be assembled separately or together.
macro_rules! zero_xsave_header {
    () => {
        r#"
    .ifndef bedplate_zero_xsave_header
    .set bedplate_zero_xsave_header, 1
    .macro ZERO_XSAVE_HEADER
    xor %eax, %eax
    .irp offset, 512, 520, 528, 536, 544, 552, 560, 568
    mov %rax, \offset(%rsp)
    .endr
    .endm
    .endif
"#
    };
}
pub(crate) use zero_xsave_header;

/// The buffer of KVM_GET_XSAVE, with room behind it for the mark that the kernel checks.
#[repr(C, align(64))]
pub struct XsaveArea {
    /// The state in the processor's standard form.
    pub bytes: [u8; 4096],
    tail: [u8; 64],
}

impl XsaveArea {
    /// An area of zeros.
    pub const fn new() -> XsaveArea {
        XsaveArea { bytes: [0; 4096], tail: [0; 64] }
    }
}

/// Offset of the header. Its first word says which components are present.
const HEADER: usize = 512;
const SOFTWARE: usize = 464;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
const PROTECTION_KEYS: u64 = 1 << 9;

/// Size in bytes of the standard form with these components.
pub fn size_of_features(features: u64) -> usize {
    let mut end = HEADER + 64;
    for component in 2..63 {
        if features & 1 << component != 0 {
            let leaf = __cpuid_count(0xd, component);
            end = end.max((leaf.ebx + leaf.eax) as usize);
        }
    }
    end
}

/// The features that Linux has enabled in ring 3.
pub fn native_features() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: XGETBV is allowed where XSAVE is enabled, and a process with ring 0 needs XSAVE.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// The kernel's `struct ucontext`.
#[repr(C)]
struct Context {
    flags: u64,
    link: u64,
    stack: libc::stack_t,
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rflags: u64,
    cs: u16,
    gs: u16,
    fs: u16,
    ss: u16,
    error: u64,
    trap: u64,
    old_mask: u64,
    cr2: u64,
    vectors: *mut XsaveArea,
    reserved: [u64; 8],
    mask: u64,
}

/// The value of `flags`: the vector registers are in XSAVE's form, and SS is valid and must be used.
const CONTEXT_FLAGS: u64 = 7;
const USER_CS: u16 = 0x33;
const USER_SS: u16 = 0x2b;

/// Continues in ring 3 with the registers in `regs` and the vector registers in `vectors`. Only the components in
/// `features` are loaded from there.
///
/// # Safety
/// The registers must belong to code that may continue in ring 3 on this thread. Nothing on the present stack may
/// be needed any more.
pub unsafe fn resume(regs: &kvm_regs, vectors: &mut XsaveArea, features: u64, own_features: u64) -> ! {
    let kept = own_features & PROTECTION_KEYS;
    let features = features | kept;
    if kept != 0 {
        // SAFETY: the area is large enough and aligned; the component is enabled.
        unsafe {
            asm!("xsave64 [{}]", in(reg) vectors.bytes.as_mut_ptr(), in("eax") kept as u32, in("edx") 0u32,
                options(nostack));
        }
    }
    let size = size_of_features(features);
    put(&mut vectors.bytes, SOFTWARE, &MAGIC1.to_ne_bytes());
    put(&mut vectors.bytes, SOFTWARE + 4, &(size as u32 + 4).to_ne_bytes());
    put(&mut vectors.bytes, SOFTWARE + 8, &features.to_ne_bytes());
    put(&mut vectors.bytes, SOFTWARE + 16, &(size as u32).to_ne_bytes());
    put(&mut vectors.bytes, SOFTWARE + 20, &[0; 28]);
    put(&mut vectors.bytes, size, &MAGIC2.to_ne_bytes());

    let mut mask = 0u64;
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: both calls only write to these two variables.
    unsafe {
        let arguments = [libc::SIG_BLOCK as u64, 0, (&raw mut mask) as u64, 8, 0, 0];
        syscall(libc::SYS_rt_sigprocmask as u64, arguments);
        syscall(libc::SYS_sigaltstack as u64, [0, (&raw mut stack) as u64, 0, 0, 0, 0]);
    }
    let context = Context {
        flags: CONTEXT_FLAGS,
        link: 0,
        stack,
        r8: regs.r8,
        r9: regs.r9,
        r10: regs.r10,
        r11: regs.r11,
        r12: regs.r12,
        r13: regs.r13,
        r14: regs.r14,
        r15: regs.r15,
        rdi: regs.rdi,
        rsi: regs.rsi,
        rbp: regs.rbp,
        rbx: regs.rbx,
        rdx: regs.rdx,
        rax: regs.rax,
        rcx: regs.rcx,
        rsp: regs.rsp,
        rip: regs.rip,
        rflags: regs.rflags,
        cs: USER_CS,
        gs: 0,
        fs: 0,
        ss: USER_SS,
        error: 0,
        trap: 0,
        old_mask: 0,
        cr2: 0,
        vectors,
        reserved: [0; 8],
        mask,
    };
    // A signal that arrives now does not overwrite the frame. Its handler runs below the stack pointer of this
    // stack, and a single instruction moves the stack pointer to the frame.
    // SAFETY: the frame is complete, and the registers are what the caller promised.
    unsafe { bedplate_ring0_sigreturn((&raw const context) as u64) }
}

/// Copies the bytes. There is no path that panics.
fn put(area: &mut [u8; 4096], at: usize, bytes: &[u8]) {
    for (to, from) in area.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_has_the_kernels_layout() {
        assert_eq!(std::mem::offset_of!(Context, r8), 40);
        assert_eq!(std::mem::offset_of!(Context, rip), 40 + 16 * 8);
        assert_eq!(std::mem::offset_of!(Context, vectors), 40 + 23 * 8);
        assert_eq!(std::mem::offset_of!(Context, mask), 40 + 256);
    }

    #[test]
    fn sizes_of_the_standard_form() {
        assert_eq!(size_of_features(3), 576);
        if std::is_x86_feature_detected!("avx") {
            assert_eq!(size_of_features(7), 832);
        }
    }
}
