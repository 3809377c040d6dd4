//! The local interrupt controller (x2APIC): the part that ring 0 uses.

use super::instructions::write_msr;

/// The base address register as KVM gets it: enabled, x2APIC mode.
pub const BASE: u64 = 0xfee0_0c00;
/// The bit of the base address register that marks the first processor.
pub const BASE_FIRST: u64 = 0x100;
/// Byte offset of the spurious-interrupt register in KVM's register page. Its value enables the controller
/// and makes 255 the vector of spurious interrupts.
pub const SPURIOUS_OFFSET: usize = 0xf0;
/// See [`SPURIOUS_OFFSET`].
pub const SPURIOUS_VALUE: u32 = 0x1ff;
/// Byte offset of the timer's vector register in KVM's register page. The value that turns the timer off is
/// [`TIMER_OFF`].
pub const TIMER_VECTOR_OFFSET: usize = 0x320;
/// See [`TIMER_VECTOR_OFFSET`].
pub const TIMER_INITIAL_OFFSET: usize = 0x380;
/// See [`TIMER_VECTOR_OFFSET`].
pub const TIMER_OFF: u32 = TIMER_MASKED as u32;
/// The vector of spurious interrupts, which are not acknowledged.
pub const SPURIOUS_VECTOR: u64 = 0xff;

const EOI: u32 = 0x80b;
const ICR: u32 = 0x830;
const SELF_IPI: u32 = 0x83f;
const LVT_TIMER: u32 = 0x832;
const TIMER_INITIAL: u32 = 0x838;
const TIMER_DIVIDE: u32 = 0x83e;
const TIMER_PERIODIC: u64 = 1 << 17;
const TIMER_MASKED: u64 = 1 << 16;
const DIVIDE_BY_ONE: u64 = 0xb;

/// Acknowledges the interrupt in service.
///
/// # Safety
/// The caller must be in ring 0.
#[inline]
pub unsafe fn end_of_interrupt() {
    // SAFETY: as the caller promised.
    unsafe { write_msr(EOI, 0) };
}

/// Sends an interrupt to the processor with number `to`.
///
/// # Safety
/// The caller must be in ring 0, and the vector must have a handler.
#[inline]
pub unsafe fn send(to: u32, vector: u8) {
    // In x2APIC mode this write orders nothing. The fences make earlier stores visible to the receiver.
    // SAFETY: as the caller promised.
    unsafe {
        std::arch::asm!("mfence", "lfence", options(nostack, preserves_flags));
        write_msr(ICR, u64::from(to) << 32 | u64::from(vector));
    }
}

/// Sends an interrupt to this processor.
///
/// # Safety
/// The same as for [`send`].
#[inline]
pub unsafe fn send_self(vector: u8) {
    // SAFETY: as the caller promised.
    unsafe { write_msr(SELF_IPI, u64::from(vector)) };
}

/// Starts the periodic timer: one interrupt every `count` ticks of the bus clock (1 GHz under KVM).
///
/// # Safety
/// The caller must be in ring 0, and the vector must have a handler.
pub unsafe fn start_timer(vector: u8, count: u32) {
    // SAFETY: as the caller promised.
    unsafe {
        write_msr(TIMER_DIVIDE, DIVIDE_BY_ONE);
        write_msr(LVT_TIMER, TIMER_PERIODIC | u64::from(vector));
        write_msr(TIMER_INITIAL, u64::from(count));
    }
}

/// Stops the timer.
///
/// # Safety
/// The caller must be in ring 0.
pub unsafe fn stop_timer(vector: u8) {
    // SAFETY: as the caller promised.
    unsafe {
        write_msr(LVT_TIMER, TIMER_MASKED | u64::from(vector));
        write_msr(TIMER_INITIAL, 0);
    }
}
