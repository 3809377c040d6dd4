//! TLB shootdown between the processors: the protocol of [`shootdown`](crate::shootdown) on this machine.
//!
//! Where a processor is, the protocol is told at these places: a thread comes in at the end of
//! [`Process::enter`](crate::Process::enter) and goes out when it leaves, loses ring 0, or ends; the host loop
//! announces its work around each run of the guest.

use crate::arch::{apic, instructions};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;
use crate::shootdown::{Batch, CpuSet, Platform};

/// A processor in ring 0.
struct Here<'a>(&'a CpuLocal);

impl Platform for Here<'_> {
    fn interrupt(&self, target: usize) {
        self.0.counters.ipis_sent.increment();
        // SAFETY: made in ring 0 only.
        unsafe { apic::send(target as u32, super::SHOOTDOWN) };
    }

    fn flush_when_resumed(&self, target: usize) -> bool {
        let target = self.0.process().cpu(target as u32);
        target.is_some_and(|target| target.steal_time.flush_when_resumed())
    }

    fn flush_page(&self, address: u64) {
        // SAFETY: made in ring 0 only.
        unsafe { instructions::invlpg(address) };
    }

    fn flush_all(&self) {
        // Translations are never global: CR4 has no PGE.
        // SAFETY: made in ring 0 only; the tables stay the same.
        unsafe { instructions::write_cr3(instructions::read_cr3()) };
    }
}

impl Cpu {
    /// Has `targets`, and this processor if it is one of them, drop what they have cached of a batch of pages. When
    /// it returns, none of them uses it any more: targets in system calls, or in ring 3, flush before they go on in
    /// the guest.
    ///
    /// The page-table entries are changed before. A target that has interrupts off holds this up until it has them on
    /// or calls [`relax`](Self::relax); one that makes a system call meanwhile calls `relax` after it.
    pub fn shoot_down(&self, targets: &CpuSet, batch: &Batch) -> Result<()> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        let local = self.local();
        local.counters.shootdowns.increment();
        self.process().shootdown().shoot(local.number as usize, targets, batch, &Here(local));
        Ok(())
    }

    /// [`shoot_down`](Self::shoot_down) for all processors.
    pub fn shoot_down_everywhere(&self, batch: &Batch) -> Result<()> {
        self.shoot_down(&CpuSet::first(self.process().cpus()), batch)
    }
}

/// Does what others have asked of this processor. In ring 0.
pub(super) fn serve(local: &CpuLocal) {
    local.process().shootdown().serve(local.number as usize, &Here(local));
}

/// A thread has come in: the first thing it does in ring 0.
pub(crate) fn come_in(local: &CpuLocal) {
    local.process().shootdown().come_in(local.number as usize, &Here(local));
}
