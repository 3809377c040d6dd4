//! Interrupts: between processors, and from the timer.
//!
//! Vectors 0xf0 to 0xff are the library's own; programs set handlers for the others
//! ([`handlers::set_handler`](crate::handlers::set_handler)) and send them with [`Cpu::send`].
//!
//! An interrupt that is sent to a processor in a host call, or that has left, is taken before its next instruction in
//! the guest.

pub mod calls;
pub mod shoot;
pub mod ticks;

use std::sync::atomic::Ordering;

use crate::arch::frame::TrapFrame;
use crate::arch::{apic, instructions};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;

/// Signals that are to be handled in ring 0.
pub(crate) const SIGNAL: u8 = 0xf3;
/// Shootdowns.
pub(crate) const SHOOTDOWN: u8 = 0xf0;
/// Calls of functions by other processors.
pub(crate) const CALL: u8 = 0xf2;
/// The preemption timer.
pub(crate) const TICK: u8 = 0xf1;

/// Whether a vector is the library's own.
pub(crate) fn is_reserved(vector: u8) -> bool {
    vector >= 0xf0
}

/// Handles the library's own interrupts; returns whether it was one.
pub(crate) fn handle(cpu: Cpu, vector: u8, frame: &mut TrapFrame) -> bool {
    match vector {
        SHOOTDOWN => shoot::serve(cpu.local()),
        CALL => calls::serve(cpu),
        SIGNAL => crate::handlers::signal::deliver(cpu, frame),
        TICK => ticks::tick(cpu, frame),
        _ => return false,
    }
    true
}

impl Cpu {
    /// Sends an interrupt to another processor, whose handler of this vector runs at once if that processor is in
    /// the guest, and before its next guest instruction otherwise.
    pub fn send(&self, to: u32, vector: u8) -> Result<()> {
        let target = self.target(to, vector)?;
        self.local().counters.ipis_sent.increment();
        // SAFETY: in ring 0; every vector has an entry.
        unsafe { apic::send(target.number, vector) };
        Ok(())
    }

    /// Sends an interrupt to this processor itself.
    pub fn send_self(&self, vector: u8) -> Result<()> {
        self.target(self.number(), vector)?;
        self.local().counters.ipis_sent.increment();
        // SAFETY: in ring 0; every vector has an entry.
        unsafe { apic::send_self(vector) };
        Ok(())
    }

    fn target(&self, to: u32, vector: u8) -> Result<&'static CpuLocal> {
        let refuse = |why| Err(Error::BadVector { vector, why });
        if vector < 32 {
            return refuse("it is an exception");
        }
        if is_reserved(vector) {
            return refuse("shootdowns, remote calls and ticks use it");
        }
        self.processor(to)
    }

    /// Another processor that a thread has, asked for in ring 0.
    pub(crate) fn processor(&self, number: u32) -> Result<&'static CpuLocal> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        let found = self.process().cpu(number);
        found.filter(|local| local.owner.load(Ordering::Acquire) != 0).ok_or(Error::NoSuchCpu { number })
    }

    /// Waits for an interrupt. The processor stays busy for Linux meanwhile, but does nothing.
    pub fn wait_for_interrupt(&self) {
        if instructions::is_ring0() {
            // SAFETY: in ring 0.
            unsafe { instructions::wait_for_interrupt() };
        }
    }
}
