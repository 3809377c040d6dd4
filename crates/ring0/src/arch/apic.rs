//! The local interrupt controller (x2APIC), as far as ring 0 uses it.

use super::instructions::write_msr;

/// The base address KVM is told: enabled, x2APIC mode.
pub const BASE: u64 = 0xfee0_0c00;
/// In the base of the first processor.
pub const BASE_FIRST: u64 = 0x100;
/// Byte offset of the spurious-interrupt register in KVM's picture of the controller, and its value: enabled,
/// spurious interrupts are vector 255.
pub const SPURIOUS_OFFSET: usize = 0xf0;
/// See [`SPURIOUS_OFFSET`].
pub const SPURIOUS_VALUE: u32 = 0x1ff;
/// The timer's registers in KVM's picture, and the value of the vector's that turns it off.
pub const TIMER_VECTOR_OFFSET: usize = 0x320;
/// See [`TIMER_VECTOR_OFFSET`].
pub const TIMER_INITIAL_OFFSET: usize = 0x380;
/// See [`TIMER_VECTOR_OFFSET`].
pub const TIMER_OFF: u32 = TIMER_MASKED as u32;
/// Spurious interrupts, which are not acknowledged.
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

/// Says that the interrupt in service is done with.
///
/// # Safety
/// In ring 0.
#[inline]
pub unsafe fn end_of_interrupt() {
    // SAFETY: as the caller promised.
    unsafe { write_msr(EOI, 0) };
}

/// Sends an interrupt to the processor with this number.
///
/// # Safety
/// In ring 0; the vector has a handler.
#[inline]
pub unsafe fn send(to: u32, vector: u8) {
    // The write orders nothing by itself in x2APIC mode: what the receiver is to see must be there before.
    // SAFETY: as the caller promised.
    unsafe {
        std::arch::asm!("mfence", "lfence", options(nostack, preserves_flags));
        write_msr(ICR, u64::from(to) << 32 | u64::from(vector));
    }
}

/// Sends an interrupt to this processor.
///
/// # Safety
/// As for [`send`].
#[inline]
pub unsafe fn send_self(vector: u8) {
    // SAFETY: as the caller promised.
    unsafe { write_msr(SELF_IPI, u64::from(vector)) };
}

/// Starts the periodic timer: an interrupt every `count` ticks of the bus clock (1 GHz under KVM).
///
/// # Safety
/// In ring 0; the vector has a handler.
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
/// In ring 0.
pub unsafe fn stop_timer(vector: u8) {
    // SAFETY: as the caller promised.
    unsafe {
        write_msr(LVT_TIMER, TIMER_MASKED | u64::from(vector));
        write_msr(TIMER_INITIAL, 0);
    }
}
