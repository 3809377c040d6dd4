//! Single instructions.
//!
//! Those that only ring 0 may execute are `unsafe`: in ring 3 they end in a signal.

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

/// Drops what this processor has cached of the page at `address`, in the tables it uses now.
///
/// # Safety
/// In ring 0.
#[inline]
pub unsafe fn invlpg(address: u64) {
    // SAFETY: as the caller promised; dropping translations never changes what memory means.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// The topmost page table in use.
///
/// # Safety
/// In ring 0.
#[inline]
pub unsafe fn read_cr3() -> u64 {
    let value;
    // SAFETY: as the caller promised.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Uses other page tables, and drops all cached translations that are not global.
///
/// # Safety
/// In ring 0; the tables map the code, the stack and the data in use where they are.
#[inline]
pub unsafe fn write_cr3(value: u64) {
    // SAFETY: as the caller promised.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Writes a model-specific register.
///
/// # Safety
/// In ring 0; the value is one that the register takes and that keeps what the program relies on.
#[inline]
pub unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: as the caller promised.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags));
    }
}

/// Lets interrupts in, waits for one (which KVM does without using the processor), and returns after it.
///
/// # Safety
/// In ring 0.
#[inline]
pub unsafe fn wait_for_interrupt() {
    // SAFETY: as the caller promised. `sti` takes effect after the next instruction, so that an interrupt that
    // is pending now ends the `hlt`.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Keeps interrupts away until it is dropped, if they were let in before.
pub struct InterruptsOff {
    were_on: bool,
    /// Belongs to the thread that made it.
    _here: std::marker::PhantomData<*mut ()>,
}

impl InterruptsOff {
    /// # Safety
    /// In ring 0, and dropped there.
    pub unsafe fn new() -> InterruptsOff {
        let flags: u64;
        // SAFETY: as the caller promised; the stack is as before at the end.
        unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
        InterruptsOff { were_on: flags & (1 << 9) != 0, _here: std::marker::PhantomData }
    }
}

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        // A thread that lost ring 0 meanwhile has its interrupts on.
        if self.were_on && is_ring0() {
            // The processor takes a pending interrupt after the instruction that follows `sti`, which must not be the caller's:
            // the caller may rely on what the handler did.
            // SAFETY: in ring 0.
            unsafe { asm!("sti", "nop", options(nostack)) };
        }
    }
}

/// A system call, and nothing else: no errno, no cancellation.
///
/// # Safety
/// What the call does must be sound.
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
