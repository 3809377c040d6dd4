//! What Linux does: fork, the faults after it, and system calls.

use std::path::Path;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Error, Result};

use super::calls::Files;
use super::clock::Clock;
use super::{MEMORY, NATIVE, PAGE, Row, WRITTEN};

pub const FORK: &str = "fork of 256 MiB";
pub const FORK_FAULT: &str = "first write to a page after fork";

/// Memory in pages of 4 KiB, all of them touched.
struct Memory(*mut u8);

impl Memory {
    fn new() -> Result<Memory> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice, and advice about it.
        let base = unsafe {
            let base = mmap_anonymous(ptr::null_mut(), MEMORY, ProtFlags::READ | ProtFlags::WRITE, flags)
                .map_err(Error::io("mapping memory"))?;
            madvise(base, MEMORY, Advice::LinuxNoHugepage).map_err(Error::io("asking for small pages"))?;
            base
        };
        let memory = Memory(base.cast());
        memory.write(MEMORY / PAGE);
        Ok(memory)
    }

    /// Writes to the first pages.
    fn write(&self, pages: usize) {
        for page in 0..pages {
            // SAFETY: inside of the mapping.
            unsafe { self.0.add(page * PAGE).cast::<u64>().write_volatile(page as u64) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`. A failure leaves it until the process ends.
        let _ = unsafe { munmap(self.0.cast(), MEMORY) };
    }
}

/// A child that waits until it is dropped.
struct Child(libc::pid_t);

impl Child {
    fn fork() -> Result<Child> {
        // SAFETY: the child calls nothing but what may be called then.
        match unsafe { libc::fork() } {
            -1 => Err(Error::io("forking")(std::io::Error::last_os_error())),
            0 => loop {
                // SAFETY: waits for the signal that ends it.
                unsafe { libc::pause() };
            },
            child => Ok(Child(child)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nobody else waits for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}

pub fn measure(clock: Clock, rounds: usize, directory: &Path) -> Result<Vec<Row>> {
    let memory = Memory::new()?;
    let (mut forks, mut faults) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut child = None;
        forks.push(clock.time(1, || {
            child = Some(Child::fork()?);
            Ok(())
        })?);
        faults.push(clock.time(WRITTEN, || {
            memory.write(WRITTEN);
            Ok(())
        })?);
        drop(child);
        // The next fork finds all pages writable again, as this one did.
        memory.write(MEMORY / PAGE);
    }
    let median = |costs: Vec<f64>| costs.into_iter().collect::<crate::sample::Samples>().median();
    let mut rows = vec![
        Row { operation: FORK, side: NATIVE, cost: median(forks) },
        Row { operation: FORK_FAULT, side: NATIVE, cost: median(faults) },
    ];
    rows.extend(Files::create(directory)?.measure(clock, rounds, NATIVE)?);
    Ok(rows)
}
