//! Interrupts between processors.
//!
//! Vectors of the library's own are reserved; programs send theirs with [`Cpu::send`](crate::Cpu::send).

use crate::arch::{apic, instructions};
use crate::cpu::Cpu;
use crate::error::{Error, Result};

/// The first of the library's own vectors, and how many they are.
const RESERVED: std::ops::RangeInclusive<u8> = 0xf0..=0xff;

/// Whether a vector is the library's own.
pub(crate) fn is_reserved(vector: u8) -> bool {
    RESERVED.contains(&vector)
}

/// Handles the library's own interrupts; returns whether it was one.
pub(crate) fn handle(_cpu: Cpu, _vector: u8) -> bool {
    false
}

impl Cpu {
    /// Sends an interrupt to another processor, whose handler of this vector runs at once if that processor is in
    /// the guest, and before its next guest instruction otherwise.
    pub fn send(&self, to: u32, vector: u8) -> Result<()> {
        let refuse = |why| Err(Error::BadVector { vector, why });
        if vector < 32 {
            return refuse("it is an exception");
        }
        if is_reserved(vector) {
            return refuse("shootdowns, remote calls and ticks use it");
        }
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        self.local().counters.ipis_sent.increment();
        // SAFETY: in ring 0; every vector has an entry.
        unsafe { apic::send(to, vector) };
        Ok(())
    }
}
