//! Shared mappings of parts of files.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::FRAME;
use crate::{Error, Result};

/// Maximum number of attempts to map at an aligned address.
const ATTEMPTS: usize = 8;

/// The accesses that a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

/// A shared mapping of a part of a file.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the object is an address range. The users of the mapping must keep their reads and writes apart.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of a file, from `offset` on. A mapping of at least one frame begins at a multiple of [`FRAME`] if
    /// possible.
    ///
    /// # Errors
    /// The kernel cannot map the file.
    pub fn of(file: impl AsFd, offset: u64, bytes: usize, access: Access) -> Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let map = |at, flags| {
            // SAFETY: this is a new mapping. It replaces no other, because the flags contain at most `FIXED_NOREPLACE`.
            unsafe { mmap(at, bytes, protection, MapFlags::SHARED | flags, &file, offset) }
        };
        // The kernel uses huge pages only at multiples of their size. Another thread may map something at the chosen address
        // first, but that is rare.
        let aligned = |_| free_and_aligned(bytes).and_then(|at| map(at, MapFlags::FIXED_NOREPLACE));
        let found = match bytes >= FRAME {
            true => (0..ATTEMPTS).map(aligned).find(|found| *found != Err(Errno::EXIST)),
            false => None,
        };
        let start = found.unwrap_or_else(|| map(std::ptr::null_mut(), MapFlags::empty()));
        Ok(Self::at(start.map_err(Error::system("mapping shared memory"))?, bytes))
    }

    fn at(start: *mut c_void, bytes: usize) -> Self {
        Self { start: NonNull::new(start.cast()).expect("no mapping is at address 0"), bytes }
    }

    /// Maps frames for a worker, and maps their pages in advance, so that the worker's reads do not fault.
    pub fn view(file: impl AsFd, bytes: usize) -> Result<Self> {
        let mapping = Self::of(file, 0, bytes, Access::Read)?;
        mapping.map_pages(0..bytes);
        Ok(mapping)
    }

    /// The address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Collapses a part that consists of whole frames into huge pages, as far as free ones exist. Returns whether the whole part
    /// now consists of huge pages.
    ///
    /// Collapsing works regardless of the kernel's setting for shared memory, if huge pages are free. It fails for a frame
    /// without any page, so this first populates one page in each frame. That is 15 times as fast as populating all pages.
    pub(super) fn make_huge(&self, part: Range<usize>) -> bool {
        let first = rustix::param::page_size();
        let has_firsts = part
            .clone()
            .step_by(FRAME)
            .all(|at| self.advise(at..at + first, Advice::LinuxPopulateWrite).is_ok());
        let start = self.start_of(&part);
        // SAFETY: the part is within the mapping. Collapsing changes the kind of pages, not their content.
        has_firsts && unsafe { libc::madvise(start.cast(), part.len(), libc::MADV_COLLAPSE) == 0 }
    }

    /// Allocates the missing pages of a part.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub(super) fn populate(&self, part: Range<usize>) -> Result<()> {
        match self.advise(part, Advice::LinuxPopulateWrite) {
            // Linux before 5.14 does not know the advice. It allocates the pages at the first accesses.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(Error::system("populating frames")(error)),
        }
    }

    /// Maps the existing pages of a part, so that later reads do not fault. A failure is harmless: the reads then fault.
    pub(super) fn map_pages(&self, part: Range<usize>) {
        let _ = self.advise(part, Advice::LinuxPopulateRead);
    }

    /// Requests huge pages, before the mapping has pages. The kernel may have none, or its settings may forbid them.
    pub(super) fn ask_for_huge(&self) {
        let _ = self.advise(0..self.bytes, Advice::LinuxHugepage);
    }

    fn advise(&self, part: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
        let start = self.start_of(&part);
        // SAFETY: the part is within the mapping. None of the advices that this module uses changes the content of memory.
        unsafe { madvise(start.cast::<c_void>(), part.len(), advice) }
    }

    /// The address of the first byte of a part.
    fn start_of(&self, part: &Range<usize>) -> *mut u8 {
        assert!(part.start <= part.end && part.end <= self.bytes);
        self.start().wrapping_add(part.start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start().cast(), self.bytes) };
    }
}

/// Finds an address, a multiple of [`FRAME`], at which `bytes` bytes are currently unmapped. The function makes a larger mapping
/// and unmaps it again.
fn free_and_aligned(bytes: usize) -> rustix::io::Result<*mut c_void> {
    let room = bytes + FRAME;
    // SAFETY: this is a new mapping, at an address that the kernel chooses.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE) }?;
    let reserved = Mapping::at(start, room);
    Ok(reserved.start().map_addr(|start| start.next_multiple_of(FRAME)).cast())
}

/// Memory that an engine reads into: a part of the service's mapping. The buffer keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Buffer {
    mapping: Arc<Mapping>,
    part: Range<usize>,
}

impl Buffer {
    pub(super) fn new(mapping: Arc<Mapping>, part: Range<usize>) -> Self {
        assert!(part.start <= part.end && part.end <= mapping.bytes());
        Self { mapping, part }
    }

    /// The address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.mapping.start_of(&self.part)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.part.len()
    }
}
