//! The preemption tick: a periodic interrupt of the processor's own timer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::arch::frame::TrapFrame;
use crate::arch::{apic, instructions};
use crate::cpu::Cpu;
use crate::error::{Error, Result};

/// The function called at each tick, with the interrupted code's registers. A scheduler changes these registers to
/// continue other code.
pub type TickHandler = fn(Cpu, &mut TrapFrame);

impl Cpu {
    /// Calls `handler` about every `period` while this thread is in the guest. The longest period is four seconds;
    /// KVM raises shorter ones to 200 microseconds.
    ///
    /// # Errors
    /// [`Error::NotInRing0`].
    pub fn start_ticks(&self, period: Duration, handler: TickHandler) -> Result<()> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        // KVM's timer ticks once per nanosecond.
        let count = u32::try_from(period.as_nanos()).unwrap_or(u32::MAX).max(1);
        self.local().tick_handler.store(handler as *mut (), Ordering::Release);
        // SAFETY: in ring 0, and the vector has an entry.
        unsafe { apic::start_timer(super::TICK, count) };
        Ok(())
    }

    /// Stops the ticks. Fails with [`Error::NotInRing0`] in ring 3.
    pub fn stop_ticks(&self) -> Result<()> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        // SAFETY: in ring 0.
        unsafe { apic::stop_timer(super::TICK) };
        self.local().tick_handler.store(std::ptr::null_mut(), Ordering::Release);
        Ok(())
    }
}

pub(super) fn tick(cpu: Cpu, frame: &mut TrapFrame) {
    let local = cpu.local();
    let handler = local.tick_handler.load(Ordering::Acquire);
    if handler.is_null() {
        return;
    }
    local.counters.ticks.increment();
    // SAFETY: `start_ticks` stores only such functions.
    let handler = unsafe { std::mem::transmute::<*mut (), TickHandler>(handler) };
    handler(cpu, frame);
}
