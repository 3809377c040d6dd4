//! Single instructions.
//!
//! Functions for instructions that only ring 0 may execute are `unsafe`: in ring 3 they cause a signal.

use std::arch::asm;

/// The privilege level this code runs at: 0 or 3.
#[inline]
pub fn privilege_level() -> u16 {
    let cs: u16;
    // SAFETY: reading the code segment selector is allowed everywhere and changes nothing.
    unsafe { asm!("mov {0:x}, cs", out(reg) cs, options(nomem, nostack, preserves_flags)) };
    cs & 3
}

/// Whether this code runs in ring 0.
#[inline]
pub fn is_ring0() -> bool {
    privilege_level() == 0
}

/// Drops this processor's cached translation of the page at `address`, in the current page tables.
///
/// # Safety
/// The caller must be in ring 0.
#[inline]
pub unsafe fn invlpg(address: u64) {
    // SAFETY: as the caller promised; dropping translations never changes what memory means.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// The guest-physical address of the topmost page table in use.
///
/// # Safety
/// The caller must be in ring 0.
#[inline]
pub unsafe fn read_cr3() -> u64 {
    let value;
    // SAFETY: as the caller promised.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Switches to other page tables, and drops all cached translations that are not global.
///
/// # Safety
/// The caller must be in ring 0. The tables must map the code, the stack and the data in use at their present
/// addresses.
#[inline]
pub unsafe fn write_cr3(value: u64) {
    // SAFETY: as the caller promised.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Writes a model-specific register.
///
/// # Safety
/// The caller must be in ring 0. The register must accept the value, and the value must keep everything the program
/// relies on.
#[inline]
pub unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: as the caller promised.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags));
    }
}

/// Enables interrupts, waits for one, and returns after it. KVM does not use the processor while it waits.
///
/// # Safety
/// The caller must be in ring 0.
#[inline]
pub unsafe fn wait_for_interrupt() {
    // SAFETY: as the caller promised. `sti` takes effect after the next instruction, so an interrupt that is
    // already pending ends the `hlt`.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Disables interrupts until it is dropped. Dropping it enables them only if they were enabled before.
pub struct InterruptsOff {
    were_on: bool,
    /// Ties the value to the thread that made it.
    _here: std::marker::PhantomData<*mut ()>,
}

impl InterruptsOff {
    /// # Safety
    /// The caller must be in ring 0, and must drop the value in ring 0.
    pub unsafe fn new() -> InterruptsOff {
        let flags: u64;
        // SAFETY: as the caller promised; the stack pointer is unchanged at the end.
        unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
        InterruptsOff { were_on: flags & (1 << 9) != 0, _here: std::marker::PhantomData }
    }
}

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        // A thread that lost ring 0 meanwhile has its interrupts enabled already.
        if self.were_on && is_ring0() {
            // The processor takes a pending interrupt after the instruction that follows `sti`. That must not be an
            // instruction of the caller, because the caller may rely on the handler's effects.
            // SAFETY: in ring 0.
            unsafe { asm!("sti", "nop", options(nostack)) };
        }
    }
}

/// Makes a bare system call: it does not set errno and is not a cancellation point.
///
/// # Safety
/// The effect of the call must be sound.
#[inline]
pub unsafe fn syscall(number: u64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: as the caller promised.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
