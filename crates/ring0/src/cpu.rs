//! The virtual processor of a thread in ring 0, and its operations.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use crate::arch::instructions;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::process::local::CpuLocal;
use crate::statistics::Statistics;

/// The virtual processor of a thread in ring 0.
///
/// The thread can lose ring 0 by a fault while it holds a `Cpu`. An operation called in ring 3 then takes effect
/// when the thread enters again, or it fails; each method says which.
#[derive(Clone, Copy)]
pub struct Cpu {
    local: &'static CpuLocal,
    _this_thread: PhantomData<*mut ()>,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cpu").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Cpu {
    pub(crate) fn new(local: &'static CpuLocal) -> Cpu {
        Cpu { local, _this_thread: PhantomData }
    }

    /// Returns the processor this code runs on, or `None` in ring 3.
    #[inline]
    pub fn current() -> Option<Cpu> {
        CpuLocal::current().map(Cpu::new)
    }

    /// The number of this processor, from 0 up to, but not including, the limit of processors.
    #[inline]
    pub fn number(&self) -> u32 {
        self.local.number
    }

    /// The process this processor belongs to.
    #[inline]
    pub fn process(&self) -> &'static Process {
        self.local.process()
    }

    /// The statistics of this processor.
    pub fn statistics(&self) -> Statistics {
        self.local.counters.read()
    }

    /// Drops the cached translation of the page at an address. Does nothing in ring 3, because entering ring 0
    /// drops all translations.
    #[inline]
    pub fn flush_page(&self, address: u64) {
        if instructions::is_ring0() {
            // SAFETY: in ring 0.
            unsafe { instructions::invlpg(address) };
        }
    }

    /// Drops all cached translations. Does nothing in ring 3, as [`flush_page`](Self::flush_page).
    #[inline]
    pub fn flush(&self) {
        if instructions::is_ring0() {
            // SAFETY: in ring 0; the tables stay the same.
            unsafe { instructions::write_cr3(instructions::read_cr3()) };
        }
    }

    /// The guest-physical address of this processor's topmost page table.
    pub fn root(&self) -> u64 {
        self.local.root.load(Ordering::Relaxed)
    }

    /// Switches this processor to other page tables. They stay in use across leaving and entering, until the thread
    /// ends. Fails with [`Error::NotInRing0`] in ring 3.
    ///
    /// # Safety
    /// `root` is the guest-physical address of a topmost table. The table must map all memory in use, including the
    /// memory that traps need, at its present address. Tables that share the entries of the process's tables
    /// ([`Process::root`]) do, except for the addresses that the program keeps for itself. The tables must stay
    /// valid as long as they are used.
    pub unsafe fn set_root(&self, root: u64) -> Result<()> {
        if !instructions::is_ring0() {
            return Err(Error::NotInRing0);
        }
        self.local.root.store(root, Ordering::Relaxed);
        // SAFETY: in ring 0; the tables are as the caller promised.
        unsafe { instructions::write_cr3(root) };
        Ok(())
    }

    pub(crate) fn local(&self) -> &'static CpuLocal {
        self.local
    }
}
