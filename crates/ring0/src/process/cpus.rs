//! The virtual processors. Their number is the largest number of threads that owned one at the same time.
//!
//! KVM cannot delete a processor, so a processor that a thread has released is given to another thread. The lock
//! `made` is held while the list grows, and is taken in ring 3 only. Readers of the list need no lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use kvm_ioctls::VcpuFd;

use super::Process;
use super::local::CpuLocal;
use crate::arch::control;
use crate::error::{Error, Result};
use crate::handlers;
use crate::kvm::statistics::Statistics;
use crate::kvm::vcpu::{self, Template};
use crate::memory::mapping::Mapping;

/// The processors of a process. See the module.
#[derive(Debug)]
pub struct Cpus {
    list: Box<[AtomicPtr<CpuLocal>]>,
    count: AtomicU32,
    made: Mutex<Vec<Made>>,
}

/// The resources that keep a processor alive.
#[derive(Debug)]
struct Made {
    cpu: VcpuFd,
    _memory: Mapping,
}

impl Cpus {
    /// The limit of processors.
    pub fn limit(&self) -> u32 {
        self.list.len() as u32
    }

    /// Creates an empty list for at most `limit` processors.
    pub fn new(limit: u32) -> Cpus {
        Cpus {
            list: (0..limit).map(|_| AtomicPtr::default()).collect(),
            count: AtomicU32::new(0),
            made: Mutex::new(Vec::new()),
        }
    }

    /// Iterates over all processors created so far.
    pub fn iter(&self) -> impl Iterator<Item = &'static CpuLocal> {
        let count = self.count.load(Ordering::Acquire) as usize;
        // SAFETY: a processor's data are never dropped.
        self.list.iter().take(count).filter_map(|entry| unsafe { entry.load(Ordering::Acquire).as_ref() })
    }

    /// The processor with this number.
    pub fn get(&self, number: u32) -> Option<&'static CpuLocal> {
        // SAFETY: as above.
        unsafe { self.list.get(number as usize)?.load(Ordering::Acquire).as_ref() }
    }

    /// Claims a processor for this thread: a free one, or a new one.
    pub fn claim(&self, process: &'static Process) -> Result<&'static CpuLocal> {
        let free = |local: &&CpuLocal| {
            local.owner.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if let Some(local) = self.iter().find(free) {
            return Ok(local);
        }
        let mut made = self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(local) = self.iter().find(free) {
            return Ok(local);
        }
        let number = self.count.load(Ordering::Relaxed);
        let Some(entry) = self.list.get(number as usize) else {
            return Err(Error::TooManyThreads { limit: self.list.len() as u32 });
        };
        let (memory, at) = CpuLocal::allocate(process, number)?;
        process.windows.add(memory.base() as u64, memory.bytes() as u64)?;
        let root = process.windows.root();
        let syscall_entry = handlers::syscall::entry();
        let template = Template {
            machine: &process.machine,
            idt: (&raw const *process.idt) as u64,
            root,
            syscall_entry,
        };
        // SAFETY: `allocate` made it.
        let local = unsafe { &*at };
        let record = process.windows.physical_address((&raw const local.steal_time) as u64);
        let mut cpu = template.create(number, local, record)?;
        // SAFETY: no other thread knows this processor yet.
        unsafe {
            (*at).fd = std::os::fd::AsRawFd::as_raw_fd(&cpu);
            (*at).run = cpu.get_kvm_run();
            (*at).syscall_entry.store(syscall_entry, Ordering::Relaxed);
            (*at).root.store(root, Ordering::Relaxed);
        }
        made.push(Made { cpu, _memory: memory });
        entry.store(at, Ordering::Release);
        self.count.store(number + 1, Ordering::Release);
        // SAFETY: as above.
        Ok(unsafe { &*at })
    }

    /// Updates the registers of a processor in KVM that have changed since it was last in the guest.
    pub fn update(&self, local: &CpuLocal) -> Result<()> {
        let wanted = handlers::syscall::entry();
        if local.syscall_entry.load(Ordering::Relaxed) != wanted {
            self.with(local.number, |cpu| set_syscall_entry(cpu, wanted))?;
            local.syscall_entry.store(wanted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Resets the page tables to the process's and stops the ticks, for the next owner.
    pub fn reset(&self, local: &CpuLocal, root: u64) -> Result<()> {
        self.with(local.number, |cpu| {
            let mut sregs = cpu.get_sregs().map_err(Error::kvm("reading control registers"))?;
            sregs.cr3 = root;
            cpu.set_sregs(&sregs).map_err(Error::kvm("setting control registers"))?;
            vcpu::stop_timer(cpu)
        })?;
        local.root.store(root, Ordering::Relaxed);
        local.tick_handler.store(std::ptr::null_mut(), Ordering::Relaxed);
        Ok(())
    }

    /// KVM's statistics of a processor.
    pub fn statistics(&self, number: u32) -> Result<Statistics> {
        let what = "opening the statistics of a processor";
        self.with(number, |cpu| Statistics::open(cpu).map_err(|source| Error::Kvm { what, source }))
    }

    fn with<R>(&self, number: u32, act: impl FnOnce(&VcpuFd) -> Result<R>) -> Result<R> {
        let made = self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match made.get(number as usize) {
            Some(made) => act(&made.cpu),
            None => Err(Error::kvm_errno("finding a virtual processor", libc::ENOENT)),
        }
    }
}

fn set_syscall_entry(cpu: &VcpuFd, entry: u64) -> Result<()> {
    let what = "setting the system-call entry";
    let msr = kvm_bindings::kvm_msr_entry { index: control::MSR_LSTAR, data: entry, ..Default::default() };
    let msrs = kvm_bindings::Msrs::from_entries(&[msr]).map_err(|_| Error::kvm_errno(what, libc::E2BIG))?;
    match cpu.set_msrs(&msrs).map_err(Error::kvm(what))? {
        1 => Ok(()),
        _ => Err(Error::kvm_errno(what, libc::EINVAL)),
    }
}
