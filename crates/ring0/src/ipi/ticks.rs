//! The preemption tick: a periodic interrupt of the processor's own timer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::arch::frame::TrapFrame;
use crate::arch::{apic, instructions};
use crate::cpu::Cpu;
use crate::error::{Error, Result};

/// What is called at each tick, with the interrupted code's registers. A scheduler changes them, and so goes on
/// elsewhere.
pub type TickHandler = fn(Cpu, &mut TrapFrame);

impl Cpu {
    /// Has `handler` called about every `period` while this thread is in the guest. The period is at most four
    /// seconds; KVM makes it 200 microseconds at least.
    pub fn start_ticks(&self, period: Duration, handler: TickHandler) -> Result<()> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        // KVM's timer counts nanoseconds.
        let count = u32::try_from(period.as_nanos()).unwrap_or(u32::MAX).max(1);
        self.local().tick_handler.store(handler as *mut (), Ordering::Release);
        // SAFETY: in ring 0; the vector's entry is there.
        unsafe { apic::start_timer(super::TICK, count) };
        Ok(())
    }

    /// Ends the ticks.
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
    // SAFETY: `start_ticks` stores such functions.
    let handler = unsafe { std::mem::transmute::<*mut (), TickHandler>(handler) };
    handler(cpu, frame);
}
