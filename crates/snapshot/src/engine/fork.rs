//! The baseline: `fork`, as databases use it today. The kernel copies the page tables at the fork, and each page
//! when the parent or the child first writes to it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use super::{Engine, Frozen, Kind, Options, Statistics, Threads};
use crate::{Error, PAGE};

/// The memory: a private anonymous mapping.
pub(super) struct Fork {
    base: usize,
    pages: usize,
    snapshots: AtomicU64,
}

impl Fork {
    pub fn new(options: Options) -> Result<Self, Error> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), options.reserve, ProtFlags::empty(), flags) }
            .map_err(Error::system("mapping the memory"))?;
        let advice = if options.huge_pages { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the mapping made above; advice about page sizes changes no content. A kernel without huge pages
        // refuses, and uses small ones.
        let _ = unsafe { madvise(at, options.reserve, advice) };
        Ok(Self { base: at as usize, pages: options.reserve / PAGE, snapshots: AtomicU64::new(0) })
    }

    fn at(&self, page: usize) -> *mut std::ffi::c_void {
        std::ptr::with_exposed_provenance_mut(self.base + page * PAGE)
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        // SAFETY: this engine's own mapping, which no code borrows any more.
        let _ = unsafe { munmap(self.at(0), self.pages * PAGE) };
    }
}

impl Threads for Fork {}

impl Engine for Fork {
    fn kind(&self) -> Kind {
        Kind::Fork
    }

    fn base(&self) -> usize {
        self.base
    }

    fn pages(&self) -> usize {
        self.pages
    }

    fn grow(&self, pages: Range<usize>) -> Result<(), Error> {
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: a part of this engine's own mapping, which no code has used yet.
        unsafe { mprotect(self.at(pages.start), pages.len() * PAGE, access) }
            .map_err(Error::system("making more of the memory accessible"))
    }

    fn freeze(&self) -> Result<Frozen<'_>, Error> {
        Ok(Frozen::fork(self.snapshots.fetch_add(1, Ordering::Relaxed) + 1))
    }

    fn statistics(&self) -> Statistics {
        Statistics { snapshots: self.snapshots.load(Ordering::Relaxed), ..Statistics::default() }
    }
}
