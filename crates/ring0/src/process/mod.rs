//! The process: one virtual machine over its own address space, for the lifetime of the program.
//!
//! A [`Process`] is never dropped, because other threads may be in ring 0. A forked child inherits KVM's files,
//! which KVM does not let it use, and the processors of the parent's threads. [`fork`] detects this, and the child
//! may build a process of its own.

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
    /// Starts building a process with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The process, or `None` if this process has not built one. The process of a parent before `fork` does not
    /// count.
    pub fn current() -> Option<&'static Process> {
        // SAFETY: a process is never dropped.
        let process = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }?;
        (!process.born.is_forked()).then_some(process)
    }

    /// The process. It is built with default options if there is none. Libraries should use this, because another
    /// library may need the process too.
    ///
    /// # Errors
    /// The errors of [`Builder::build`], and [`Error::Missing`] if the processor has no virtualization. Without it
    /// KVM would emulate ring 0, and cannot run every instruction of a program.
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

    /// Makes this thread continue in ring 0. Does nothing if it is there already.
    ///
    /// At its first entry, a thread gets a virtual processor, which it owns until it ends. A thread can lose ring 0
    /// at any time by a fault (see the crate's documentation), and can then enter again.
    ///
    /// # Errors
    /// [`Error::TooManyThreads`], [`Error::Interrupted`], [`Error::Forked`], [`Error::Kvm`], [`Error::Memory`],
    /// [`Error::AddressSpace`].
    pub fn enter(&'static self) -> Result<Cpu> {
        thread::enter(self)
    }

    /// Makes this thread continue in ring 3. Does nothing if it is there already.
    pub fn leave(&self) {
        thread::leave();
    }

    /// Runs `function` in ring 0. If the thread was in ring 3 before, it leaves ring 0 afterwards, even if the
    /// function panics. Otherwise it stays in ring 0. The errors are those of [`enter`](Self::enter).
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

    /// The statistics of ring 0, summed over all processors.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        for local in self.cpus.iter() {
            sum += local.counters.read();
        }
        sum
    }

    /// Number of virtual processors: the largest number of threads that owned one at the same time.
    pub fn cpus(&self) -> usize {
        self.cpus.iter().count()
    }

    /// Number of virtual processors that threads own now.
    pub fn cpus_in_use(&self) -> usize {
        self.cpus.iter().filter(|local| local.owner.load(Ordering::Relaxed) != 0).count()
    }

    /// The limit of windows of 1 GiB, and the number of gigabytes that are still free.
    pub fn window_capacity(&self) -> (usize, usize) {
        (self.windows.capacity(), natively(|| self.windows.free()))
    }

    /// KVM's own statistics of a processor. They also count the exits that do not reach this process.
    pub fn kvm_statistics(&self, cpu: u32) -> Result<KvmStatistics> {
        natively(|| self.cpus.statistics(cpu))
    }

    /// Makes a range of whole gigabytes private to ring 0: only the page tables determine its contents, and no
    /// window is ever added there. The caller must have reserved the range (`PROT_NONE`), so that nothing else is
    /// mapped there.
    ///
    /// Without this, a fault in a reserved range would add its window, and hide what ring 0 maps there.
    ///
    /// # Errors
    /// [`Error::BadRange`] if the range does not consist of whole gigabytes.
    pub fn keep_private(&self, address: u64, bytes: u64) -> Result<()> {
        natively(|| self.windows.keep_private(address, bytes))
    }

    /// Ends the privacy of a range. Ring 0 must have removed its mappings there, and flushed them.
    pub fn release_private(&self, address: u64, bytes: u64) -> Result<()> {
        natively(|| self.windows.release_private(address, bytes))
    }

    /// Gives memory of the process contiguous guest-physical addresses in addition to its present ones. Page tables
    /// can then map it elsewhere as frames.
    ///
    /// # Safety
    /// The memory must stay mapped until [`detach`](Self::detach).
    pub unsafe fn attach(&self, address: u64, bytes: u64) -> Result<Attached> {
        natively(|| {
            self.windows.add(address, bytes)?;
            self.windows.attach(address, bytes)
        })
    }

    /// Removes the guest-physical addresses that [`attach`](Self::attach) gave. No page table may lead to them any
    /// more.
    pub fn detach(&self, attached: Attached) -> Result<()> {
        natively(|| self.windows.detach(attached))
    }

    /// Adds the windows of a range of memory, so that ring 0 reaches it without a fault. Handlers need this for the
    /// memory they touch.
    pub fn add_windows(&self, address: u64, bytes: u64) -> Result<()> {
        natively(|| self.windows.add(address, bytes))
    }

    /// The guest-physical address of an address of the process, or `None` if it has no window.
    pub fn physical_address(&self, address: u64) -> Option<u64> {
        self.windows.physical_address(address)
    }

    /// The guest-physical address of the topmost page table.
    pub fn root(&self) -> u64 {
        self.windows.root()
    }

    /// The statistics of all shootdowns so far.
    pub fn shootdown_statistics(&self) -> ShootdownStatistics {
        self.shootdown.statistics()
    }

    /// The page tables of the process.
    ///
    /// # Safety
    /// The caller may change only entries of ranges that it keeps private ([`keep_private`](Self::keep_private)),
    /// on which no other code relies. All other entries, those of windows, belong to this library.
    pub unsafe fn page_tables(&self) -> PageTables<'_, Windows> {
        // SAFETY: `root` is a topmost table, and the windows find every table below it.
        unsafe { PageTables::from_root(&self.windows, Frame::containing(self.windows.root())) }
    }

    /// Creates a pool of frames for ring 0 from `memory`. The memory is attached in one piece, and handlers can use
    /// the pool. The pool is never freed.
    pub fn frame_pool(&self, memory: HostMemory) -> Result<&'static FramePool> {
        let (address, bytes) = (memory.base() as u64, memory.bytes() as u64);
        // SAFETY: the pool owns the memory, and is never freed.
        let attached = unsafe { self.attach(address, bytes) }?;
        let first = Frame::containing(attached.physical);
        let pool = Box::leak(Box::new(FramePool::new(first, memory, self.cpus.limit())?));
        self.add_windows(std::ptr::from_ref(pool) as u64, size_of::<FramePool>() as u64)?;
        for (address, bytes) in pool.spans() {
            self.add_windows(address as u64, bytes as u64)?;
        }
        Ok(pool)
    }

    /// The memory that contains page tables: all windows, and all attached memory.
    pub fn physical_memory(&self) -> &Windows {
        &self.windows
    }

    /// Interrupts a processor from the host part. Makes only a bare system call, so it may be called between any
    /// two instructions.
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

    /// The vector features of ring 0, in the form of XCR0.
    pub(crate) fn features(&self) -> u64 {
        self.machine.xcr0
    }

    /// The vector features of ring 3, in the form of XCR0.
    pub(crate) fn native_features(&self) -> u64 {
        self.native_features
    }

    /// Returns an error in a forked child.
    fn check_not_forked(&self) -> Result<()> {
        if self.born.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }
}
