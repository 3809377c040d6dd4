//! Interrupts between processors, and from the timer.
//!
//! Vectors 0xf0 to 0xff are reserved for this library. Programs set handlers for the others
//! ([`handlers::set_handler`](crate::handlers::set_handler)) and send them with [`Cpu::send`].
//!
//! A processor that is in a host call, or has left ring 0, takes a pending interrupt before its next instruction in
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

/// Vector for signals to handle in ring 0.
pub(crate) const SIGNAL: u8 = 0xf3;
/// Vector of shootdowns.
pub(crate) const SHOOTDOWN: u8 = 0xf0;
/// Vector of function calls by other processors.
pub(crate) const CALL: u8 = 0xf2;
/// Vector of the preemption timer.
pub(crate) const TICK: u8 = 0xf1;

/// Whether a vector is reserved for this library.
pub(crate) fn is_reserved(vector: u8) -> bool {
    vector >= 0xf0
}

/// Handles this library's own interrupts. Returns whether the vector is one of them.
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
    /// Sends an interrupt to another processor. Its handler of this vector runs at once if that processor is in the
    /// guest, and otherwise before its next guest instruction.
    ///
    /// # Errors
    /// [`Error::NotInRing0`]; [`Error::BadVector`] for exceptions and reserved vectors; [`Error::NoSuchCpu`] if no
    /// thread owns the target.
    pub fn send(&self, to: u32, vector: u8) -> Result<()> {
        let target = self.target(to, vector)?;
        self.local().counters.ipis_sent.increment();
        // SAFETY: in ring 0; every vector has an entry.
        unsafe { apic::send(target.number, vector) };
        Ok(())
    }

    /// Sends an interrupt to this processor. The errors are those of [`send`](Self::send).
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

    /// A processor that a thread owns. Fails in ring 3.
    pub(crate) fn processor(&self, number: u32) -> Result<&'static CpuLocal> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        let found = self.process().cpu(number);
        found.filter(|local| local.owner.load(Ordering::Acquire) != 0).ok_or(Error::NoSuchCpu { number })
    }

    /// Waits for an interrupt. Linux counts the processor as busy meanwhile, but it executes nothing. Returns at
    /// once in ring 3.
    pub fn wait_for_interrupt(&self) {
        if instructions::is_ring0() {
            // SAFETY: in ring 0.
            unsafe { instructions::wait_for_interrupt() };
        }
    }
}
