//! The process: one virtual machine over its own address space, for as long as the program runs.
//!
//! A [`Process`] is never dropped: other threads may be in ring 0. A forked child inherits files that KVM refuses
//! it, and the threads' processors; [`fork`] notices, and the child may build its own.

mod builder;
mod cpus;
mod fork;
pub mod local;
pub(crate) mod thread;

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

pub use builder::Builder;
use cpus::Cpus;

use crate::arch::instructions::is_ring0;
use crate::arch::segments::Idt;
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::frames::{Frame, FramePool, HostMemory};
use crate::host::call::natively;
use crate::kvm::machine::Machine;
use crate::kvm::statistics::Statistics as KvmStatistics;
use crate::memory::windows::{Attached, Windows};
use crate::paging::PageTables;
use crate::shootdown::{Shootdown, ShootdownStatistics};
use crate::statistics::Statistics;

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Whether the processor has VT-x or AMD-V.
pub fn virtualizes() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

/// A process that can enter ring 0. See the crate's documentation.
#[derive(Debug)]
pub struct Process {
    machine: Machine,
    windows: Windows,
    idt: Box<Idt>,
    cpus: Cpus,
    shootdown: Shootdown,
    native_features: u64,
    born: fork::Mark,
}

impl Process {
    /// What can be chosen before the process is built.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The process, if this one has been built (and not only the one it was forked from).
    pub fn current() -> Option<&'static Process> {
        // SAFETY: a process is never dropped.
        let process = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }?;
        (!process.born.is_forked()).then_some(process)
    }

    /// The process, built as it is by default if it has not been. For libraries, which are not the only ones to need it.
    ///
    /// # Errors
    /// Those of [`Builder::build`]; [`Error::Missing`] where the processor has no virtualization: KVM would emulate ring 0,
    /// and cannot run what a program has.
    pub fn this() -> Result<&'static Process> {
        static BUILDING: Mutex<()> = Mutex::new(());
        let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = Process::current() {
            return Ok(process);
        }
        if !virtualizes() {
            let advice = "this processor does not show it; `bedplate doctor` tells what ring 0 needs";
            return Err(Error::Missing { feature: "virtualization (VT-x or AMD-V)", advice });
        }
        Process::builder().build()
    }

    /// Lets this thread go on in ring 0. Does nothing if it is there.
    ///
    /// The first time a thread enters, it gets a virtual processor, which it keeps until it ends. A thread can lose
    /// ring 0 at any time by a fault (see the crate's documentation) and then enter again.
    pub fn enter(&'static self) -> Result<Cpu> {
        thread::enter(self)
    }

    /// Lets this thread go on in ring 3. Does nothing if it is there.
    pub fn leave(&self) {
        thread::leave();
    }

    /// Runs `function` in ring 0. Where the thread was in ring 0 before, it is afterwards; otherwise it leaves, also
    /// if the function panics.
    pub fn run<R>(&'static self, function: impl FnOnce(Cpu) -> R) -> Result<R> {
        struct Leave(bool);
        impl Drop for Leave {
            fn drop(&mut self) {
                if self.0 {
                    thread::leave();
                }
            }
        }
        let _leave = Leave(!is_ring0());
        let cpu = self.enter()?;
        Ok(function(cpu))
    }

    /// What happened in ring 0 until now, on all processors together.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        for local in self.cpus.iter() {
            sum += local.counters.read();
        }
        sum
    }

    /// How many virtual processors there are: as many as threads were in ring 0 at the same time.
    pub fn cpus(&self) -> usize {
        self.cpus.iter().count()
    }

    /// How many of them belong to threads.
    pub fn cpus_in_use(&self) -> usize {
        self.cpus.iter().filter(|local| local.owner.load(Ordering::Relaxed) != 0).count()
    }

    /// How many windows of 1 GiB there can be, and how many more can be added.
    pub fn window_capacity(&self) -> (usize, usize) {
        (self.windows.capacity(), natively(|| self.windows.free()))
    }

    /// KVM's own statistics of a processor, which also count the exits that never reach this process.
    pub fn kvm_statistics(&self, cpu: u32) -> Result<KvmStatistics> {
        natively(|| self.cpus.statistics(cpu))
    }

    /// Keeps a range of addresses, whole gigabytes, for ring 0 alone: what they mean is up to the page tables, and no
    /// window will ever be put there. The caller has reserved the range (`PROT_NONE`), so that nothing else is there.
    ///
    /// Without this, a fault in a reserved range would add its window, and hide what ring 0 maps there.
    pub fn keep_private(&self, address: u64, bytes: u64) -> Result<()> {
        natively(|| self.windows.keep_private(address, bytes))
    }

    /// Gives a range back that was kept private. Ring 0 has removed its mappings there, and flushed.
    pub fn release_private(&self, address: u64, bytes: u64) -> Result<()> {
        natively(|| self.windows.release_private(address, bytes))
    }

    /// Gives memory of the process guest-physical addresses in one piece, so that page tables can map it elsewhere:
    /// frames. It stays where it is, too.
    ///
    /// # Safety
    /// The memory stays mapped until [`detach`](Self::detach).
    pub unsafe fn attach(&self, address: u64, bytes: u64) -> Result<Attached> {
        natively(|| {
            self.windows.add(address, bytes)?;
            self.windows.attach(address, bytes)
        })
    }

    /// Takes guest-physical addresses away again. No page table leads to them any more.
    pub fn detach(&self, attached: Attached) -> Result<()> {
        natively(|| self.windows.detach(attached))
    }

    /// Makes sure that ring 0 reaches a range of memory without a fault: what handlers touch.
    pub fn add_windows(&self, address: u64, bytes: u64) -> Result<()> {
        natively(|| self.windows.add(address, bytes))
    }

    /// The guest-physical address at which ring 0 has an address of the process, if its window is there.
    pub fn physical_address(&self, address: u64) -> Option<u64> {
        self.windows.physical_address(address)
    }

    /// The topmost page table's guest-physical address.
    pub fn root(&self) -> u64 {
        self.windows.root()
    }

    /// What shootdowns did until now.
    pub fn shootdown_statistics(&self) -> ShootdownStatistics {
        self.shootdown.statistics()
    }

    /// The page tables of the process, to look at and to change.
    ///
    /// # Safety
    /// Only entries are changed whose meaning nobody else relies on: those of ranges kept private
    /// ([`keep_private`](Self::keep_private)). What hangs below other entries, windows, is the library's.
    pub unsafe fn page_tables(&self) -> PageTables<'_, Windows> {
        // SAFETY: the topmost table is one, and what it leads to is found by the windows.
        unsafe { PageTables::from_root(&self.windows, Frame::containing(self.windows.root())) }
    }

    /// A pool of frames for ring 0, made of `memory`: attached in one piece, and such that handlers can use it. It
    /// exists as long as the process.
    pub fn frame_pool(&self, memory: HostMemory) -> Result<&'static FramePool> {
        let (address, bytes) = (memory.base() as u64, memory.bytes() as u64);
        // SAFETY: the pool has the memory, and stays.
        let attached = unsafe { self.attach(address, bytes) }?;
        let first = Frame::containing(attached.physical);
        let pool = Box::leak(Box::new(FramePool::new(first, memory, self.cpus.limit())?));
        self.add_windows(std::ptr::from_ref(pool) as u64, size_of::<FramePool>() as u64)?;
        for (address, bytes) in pool.spans() {
            self.add_windows(address as u64, bytes as u64)?;
        }
        Ok(pool)
    }

    /// The memory that holds page tables: the process's, by its windows and by what was attached.
    pub fn physical_memory(&self) -> &Windows {
        &self.windows
    }

    /// Interrupts a processor from its host part. Bare: also in the middle of anything.
    pub(crate) fn interrupt_from_outside(&self, number: u32, vector: u8) {
        self.machine.interrupt(number, vector);
    }

    pub(crate) fn shootdown(&self) -> &Shootdown {
        &self.shootdown
    }

    pub(crate) fn cpu(&self, number: u32) -> Option<&'static local::CpuLocal> {
        self.cpus.get(number)
    }

    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The vector features of ring 0.
    pub(crate) fn features(&self) -> u64 {
        self.machine.xcr0
    }

    /// The vector features of ring 3.
    pub(crate) fn native_features(&self) -> u64 {
        self.native_features
    }

    /// An error if this is a forked child.
    fn check_not_forked(&self) -> Result<()> {
        if self.born.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }
}
