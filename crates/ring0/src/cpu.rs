//! The processor this thread has in ring 0, and what can be done with it.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use crate::arch::instructions;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::process::local::CpuLocal;
use crate::statistics::Statistics;

/// The virtual processor of a thread in ring 0.
///
/// A thread can lose ring 0 by a fault while it has one. What is asked of it in ring 3 has its effect when the
/// thread enters again, or is refused, as each method says.
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

    /// The processor this code runs on, if it runs in ring 0.
    #[inline]
    pub fn current() -> Option<Cpu> {
        CpuLocal::current().map(Cpu::new)
    }

    /// Its number: from 0 on, and below the limit of processors.
    #[inline]
    pub fn number(&self) -> u32 {
        self.local.number
    }

    /// Its process.
    #[inline]
    pub fn process(&self) -> &'static Process {
        self.local.process()
    }

    /// What happened on it.
    pub fn statistics(&self) -> Statistics {
        self.local.counters.read()
    }

    /// Drops what it has cached of the page at an address. In ring 3 nothing is to be done: everything is dropped when
    /// a thread enters.
    #[inline]
    pub fn flush_page(&self, address: u64) {
        if instructions::is_ring0() {
            // SAFETY: in ring 0.
            unsafe { instructions::invlpg(address) };
        }
    }

    /// Drops all translations it has cached; in ring 3 as [`flush_page`](Self::flush_page).
    #[inline]
    pub fn flush(&self) {
        if instructions::is_ring0() {
            // SAFETY: in ring 0; the tables stay the same.
            unsafe { instructions::write_cr3(instructions::read_cr3()) };
        }
    }

    /// The topmost page table it uses: a guest-physical address.
    pub fn root(&self) -> u64 {
        self.local.root.load(Ordering::Relaxed)
    }

    /// Lets it use other page tables from now on, also after leaving and entering, until its thread ends.
    ///
    /// # Safety
    /// `root` is the guest-physical address of a topmost table that maps everything in use, including what traps
    /// need, where it is: tables that share the process's ([`Process::root`]) entries do, outside of what the
    /// program keeps for itself. They stay as long as they are used.
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
