//! Building the process: its virtual machine, and the windows of all mapped memory.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use super::cpus::Cpus;
use super::{CURRENT, Process, fork, thread};
use crate::arch::segments::Idt;
use crate::arch::{stubs, xstate};
use crate::error::{Error, Result};
use crate::kvm::machine::Machine;
use crate::memory::maps;
use crate::memory::windows::Windows;
use crate::shootdown::{MOST_CPUS, Shootdown};

/// Builds the [`Process`].
#[derive(Debug, Clone)]
pub struct Builder {
    max_cpus: u32,
    max_windows: Option<usize>,
    small_pages: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder { max_cpus: MOST_CPUS as u32, max_windows: None, small_pages: false }
    }
}

impl Builder {
    /// Sets the limit of virtual processors, that is, of threads that own one. The value is clamped to 1 to 256;
    /// the default is 256. The limit is lower if KVM allows fewer.
    pub fn max_cpus(mut self, count: u32) -> Builder {
        self.max_cpus = count.clamp(1, MOST_CPUS as u32);
        self
    }

    /// Sets the limit of windows of 1 GiB. The limit is lower if physical addresses or KVM's memory slots allow
    /// fewer.
    pub fn max_windows(mut self, count: usize) -> Builder {
        self.max_windows = Some(count);
        self
    }

    /// Maps windows by pages of 2 MiB, as on processors without pages of 1 GiB.
    pub fn small_pages(mut self) -> Builder {
        self.small_pages = true;
        self
    }

    /// Builds the process.
    ///
    /// # Errors
    /// [`Error::AlreadyBuilt`] if this process has one; [`Error::Open`], [`Error::Kvm`] and [`Error::Missing`] if
    /// KVM cannot be used; [`Error::AddressSpace`] if the memory needs too many windows; [`Error::Memory`] and
    /// [`Error::Maps`].
    pub fn build(self) -> Result<&'static Process> {
        let before = CURRENT.load(Ordering::Acquire);
        // SAFETY: a process is never dropped.
        if unsafe { before.as_ref() }.is_some_and(|process| !process.born.is_forked()) {
            return Err(Error::AlreadyBuilt);
        }
        thread::prepare()?;
        let machine = Machine::new()?;
        let slots = machine.slots.min(self.max_windows.map_or(usize::MAX, |count| count + 8));
        let gigabyte_pages = machine.gigabyte_pages && !self.small_pages;
        let windows = Windows::new(&machine.vm.as_raw_fd(), machine.address_width, slots, gigabyte_pages)?;
        let areas = maps::areas()?;
        maps::grow_main_stack(&areas);
        let starts = maps::windows(&maps::areas()?);
        if starts.len() > windows.capacity() {
            return Err(Error::AddressSpace { needed: starts.len(), available: windows.capacity() });
        }
        for start in starts {
            windows.add(start, 1)?;
        }
        let idt = Box::new(Idt::new());
        windows.add((&raw const *idt) as u64, size_of::<Idt>() as u64)?;
        windows.add(stubs::bedplate_ring0_guest_start as *const () as u64, 4096)?;
        let max_cpus = self.max_cpus.min(machine.max_cpus);
        let shootdown = Shootdown::new(max_cpus as usize);
        let (start, bytes) = shootdown.span();
        windows.add(start as u64, bytes as u64)?;
        let process = Box::new(Process {
            cpus: Cpus::new(max_cpus),
            shootdown,
            native_features: xstate::native_features(),
            born: fork::Mark::new()?,
            idt,
            windows,
            machine,
        });
        windows_of(&process)?;
        let new = Box::into_raw(process);
        match CURRENT.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the value was just leaked.
            Ok(_) => Ok(unsafe { &*new }),
            Err(_) => {
                // SAFETY: no other thread has seen the value.
                drop(unsafe { Box::from_raw(new) });
                Err(Error::AlreadyBuilt)
            }
        }
    }
}

/// Adds the windows of the process value, because trap handlers read it.
fn windows_of(process: &Process) -> Result<()> {
    process.windows.add(std::ptr::from_ref(process) as u64, size_of::<Process>() as u64)
}
