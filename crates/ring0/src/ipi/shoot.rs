//! TLB shootdown between the processors: the protocol of [`shootdown`](crate::shootdown) on this machine.
//!
//! The protocol must know where each processor is. A thread comes in at the end of
//! [`Process::enter`](crate::Process::enter), and goes out when it leaves, loses ring 0, or ends. The host loop
//! announces its work around each run of the guest.

use crate::arch::{apic, instructions};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;
use crate::shootdown::{Batch, CpuSet, Platform};

/// The processor that this code runs on, in ring 0.
struct Here<'a>(&'a CpuLocal);

impl Platform for Here<'_> {
    fn interrupt(&self, target: usize) {
        self.0.counters.ipis_sent.increment();
        // SAFETY: a `Here` exists in ring 0 only.
        unsafe { apic::send(target as u32, super::SHOOTDOWN) };
    }

    fn flush_when_resumed(&self, target: usize) -> bool {
        let target = self.0.process().cpu(target as u32);
        target.is_some_and(|target| target.steal_time.flush_when_resumed())
    }

    fn flush_page(&self, address: u64) {
        // SAFETY: a `Here` exists in ring 0 only.
        unsafe { instructions::invlpg(address) };
    }

    fn flush_all(&self) {
        // Translations are never global: CR4 has no PGE.
        // SAFETY: a `Here` exists in ring 0 only; the tables stay the same.
        unsafe { instructions::write_cr3(instructions::read_cr3()) };
    }
}

impl Cpu {
    /// Makes the processors in `targets`, which may include this one, drop the cached translations of a batch of
    /// pages. When this returns, no target uses these translations any more. A target that is in a system call or
    /// in ring 3 flushes before it continues in the guest.
    ///
    /// The caller must change the page-table entries before. A target with interrupts off delays this call until it
    /// enables them or calls [`relax`](Self::relax). A target that makes a system call with interrupts off must
    /// call `relax` after it.
    ///
    /// # Errors
    /// [`Error::NotInRing0`].
    pub fn shoot_down(&self, targets: &CpuSet, batch: &Batch) -> Result<()> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        let local = self.local();
        local.counters.shootdowns.increment();
        self.process().shootdown().shoot(local.number as usize, targets, batch, &Here(local));
        Ok(())
    }

    /// Calls [`shoot_down`](Self::shoot_down) for all processors.
    pub fn shoot_down_everywhere(&self, batch: &Batch) -> Result<()> {
        self.shoot_down(&CpuSet::first(self.process().cpus()), batch)
    }
}

/// Performs the shootdowns that others have requested of this processor. The caller must be in ring 0.
pub(super) fn serve(local: &CpuLocal) {
    local.process().shootdown().serve(local.number as usize, &Here(local));
}

/// Announces that a thread has come in. This must be the thread's first action in ring 0.
pub(crate) fn come_in(local: &CpuLocal) {
    local.process().shootdown().come_in(local.number as usize, &Here(local));
}
