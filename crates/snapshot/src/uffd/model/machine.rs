//! The machine of the protocol in the model checker: a kernel, some pages of memory, and replacements for the parts
//! of a region that loom cannot follow.

use std::ops::Range;

use loom::sync::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use super::PAGES;
use crate::PAGE;

/// Limit of snapshots.
pub const SNAPSHOTS: usize = 2;

/// Memory and page tables.
#[derive(Default)]
pub struct Memory {
    /// The owner's memory.
    pub content: [u64; PAGES],
    pub protected: [bool; PAGES],
    /// The snapshots' own copies.
    pub own: [[Option<u64>; PAGES]; SNAPSHOTS],
    /// The pages that were in use when the snapshots were taken.
    pub in_use: [[bool; PAGES]; SNAPSHOTS],
    /// Pages on which writers wait and whose faults no handler has read.
    faults: Vec<usize>,
    /// For each page, the number of times that its waiting threads were woken.
    wakes: [usize; PAGES],
    /// Whether there will be no more faults.
    over: bool,
}

impl Memory {
    /// The content that a snapshot sees.
    pub fn seen(&self, view: usize) -> [u64; PAGES] {
        std::array::from_fn(|page| self.own[view][page].unwrap_or(self.content[page]))
    }
}

/// The machine. Each of its steps is atomic, as with the kernel's page-table locks and flushes.
pub struct Machine {
    memory: Mutex<Memory>,
    fault: Condvar,
    wake: Condvar,
}

impl Machine {
    pub fn new() -> Self {
        Self { memory: Mutex::new(Memory::default()), fault: Condvar::new(), wake: Condvar::new() }
    }

    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    /// Models a store. It faults until the page is not protected.
    pub fn store(&self, page: usize, value: u64) {
        let mut memory = self.memory();
        while memory.protected[page] {
            memory.faults.push(page);
            self.fault.notify_one();
            let wakes = memory.wakes[page];
            while memory.wakes[page] == wakes {
                memory = self.wake.wait(memory).unwrap();
            }
        }
        memory.content[page] = value;
    }

    /// Waits for faults to serve. Returns false if there will be no more.
    pub fn wait_for_fault(&self) -> bool {
        let mut memory = self.memory();
        while memory.faults.is_empty() && !memory.over {
            memory = self.fault.wait(memory).unwrap();
        }
        !memory.faults.is_empty()
    }

    /// Takes a fault, and returns its address.
    pub fn read(&self) -> Option<usize> {
        self.memory().faults.pop().map(|page| page * PAGE)
    }

    pub fn no_more_faults(&self) {
        self.memory().over = true;
        self.fault.notify_all();
    }

    pub fn protect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, true);
        Ok(())
    }

    pub fn unprotect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, false);
        Ok(())
    }

    fn write_protect(&self, start: usize, len: usize, protect: bool) {
        assert!(start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0);
        let mut memory = self.memory();
        let pages = start / PAGE..(start + len) / PAGE;
        for page in pages.clone() {
            memory.protected[page] = protect;
            memory.wakes[page] += usize::from(!protect);
        }
        if !protect {
            // Threads that are woken do not wait any more.
            memory.faults.retain(|page| !pages.contains(page));
        }
        self.wake.notify_all();
    }
}

/// A snapshot's mapping.
pub mod target {
    use super::Range;
    use crate::uffd::model::region::Region;

    pub struct Target(pub usize);

    /// The error of a copy, which never fails here.
    #[derive(Debug)]
    pub struct Incomplete;

    impl Target {
        pub fn copy_pages(&self, region: &Region, pages: Range<usize>) -> Result<(), Incomplete> {
            let mut memory = region.descriptor.memory();
            for page in pages {
                // Copy-on-write copies a page only once.
                let content = memory.content[page];
                memory.own[self.0][page].get_or_insert(content);
            }
            Ok(())
        }
    }
}

/// Tables of loom's atomics.
pub mod mmap_box {
    use std::ops::Deref;

    use rustix::io::Errno;

    pub struct MmapArray<T>(Box<[T]>);

    impl<T: Default> MmapArray<T> {
        pub fn new(len: usize, _: bool) -> Result<Self, Errno> {
            Ok(Self((0..len).map(|_| T::default()).collect()))
        }
    }

    impl<T> Deref for MmapArray<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}

pub mod tables {
    pub use loom::sync::atomic::AtomicU32;

    pub use super::mmap_box::MmapArray;
}

pub mod words {
    pub use loom::sync::atomic::AtomicU64;
}
