//! The memory behind a pool. It is mapped once and aligned for huge pages, and huge pages of the host back it if
//! requested.

use std::fs;
use std::io;
use std::ptr;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

const MIB_2: usize = 2 << 20;
const GIB: usize = 1 << 30;

/// The kind of the host's pages that back the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages of 2 MiB that the administrator has reserved.
    Reserved,
    /// Huge pages of 2 MiB where the host finds free ones when the memory is first touched, and pages of 4 KiB
    /// elsewhere.
    Transparent,
    /// Pages of 4 KiB.
    Small,
    /// Pages of 4 KiB that forked children share with this process.
    Shared,
    /// The first available kind of `Reserved`, `Transparent` and `Small`.
    Best,
}

/// The reason why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The size is zero, or exceeds the address space.
    #[error("a pool of {0} bytes cannot be made")]
    Size(usize),
    /// The host has too few reserved huge pages.
    #[error(
        "{needed} huge pages of 2 MiB are needed and {free} are free: reserve more with \
         `sysctl vm.nr_hugepages={total}`, or do without reserved ones"
    )]
    TooFewHugePages {
        /// Number of huge pages needed.
        needed: usize,
        /// Number of huge pages that are free on the host.
        free: usize,
        /// The value of `vm.nr_hugepages` that would suffice.
        total: usize,
    },
    /// Transparent huge pages are switched off.
    #[error(
        "transparent huge pages are switched off: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` \
         allows them, or do with small pages"
    )]
    NoTransparentHugePages,
    /// The host refused a request.
    #[error("the host refuses {bytes} bytes of memory ({action})")]
    Host {
        /// The requested size in bytes.
        bytes: usize,
        /// The action that failed.
        action: &'static str,
        /// The host's reason.
        source: io::Error,
    },
}

/// Memory for frames. Its address is a multiple of 2 MiB; if it has 1 GiB or more, a multiple of 1 GiB.
#[derive(Debug)]
pub struct HostMemory {
    base: *mut u8,
    bytes: usize,
    backing: Backing,
}

// SAFETY: the value is only the right to unmap the memory. Only the users of its frames access the memory.
unsafe impl Send for HostMemory {}
// SAFETY: as above: nothing here reads or writes it.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `bytes` bytes, rounded up to a multiple of 2 MiB. The host provides reserved huge pages at once, and
    /// other pages when they are first touched; see [`prefault`](Self::prefault).
    pub fn map(bytes: usize, backing: Backing) -> Result<HostMemory, MemoryError> {
        let memory = Self::reserve(bytes)?;
        match backing {
            Backing::Reserved => memory.back_reserved(),
            Backing::Transparent => memory.back_transparent(),
            Backing::Small => memory.back_small(),
            Backing::Shared => memory.back_shared(),
            Backing::Best => {
                let memory = match memory.back_reserved() {
                    Ok(memory) => return Ok(memory),
                    Err(MemoryError::TooFewHugePages { .. } | MemoryError::Host { .. }) => {
                        Self::reserve(bytes)?
                    }
                    Err(other) => return Err(other),
                };
                match memory.back_transparent() {
                    Err(MemoryError::NoTransparentHugePages) => Self::reserve(bytes)?.back_small(),
                    other => other,
                }
            }
        }
    }

    /// The first address of the memory.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// The size in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The kind of pages that back the memory; never [`Backing::Best`].
    pub const fn backing(&self) -> Backing {
        self.backing
    }

    /// Makes the host provide all pages now, so that no first access waits for the host.
    pub fn prefault(&self) -> Result<(), MemoryError> {
        // SAFETY: the range is this mapping, and populating changes no contents.
        unsafe { madvise(self.base.cast(), self.bytes, Advice::LinuxPopulateWrite) }
            .map_err(|error| self.refused("providing its pages", error))
    }

    /// Reserves addresses without memory behind them.
    fn reserve(bytes: usize) -> Result<HostMemory, MemoryError> {
        let size = bytes.checked_next_multiple_of(MIB_2).filter(|size| (1..1 << 46).contains(size));
        let size = size.ok_or(MemoryError::Size(bytes))?;
        let alignment = if size >= GIB { GIB } else { MIB_2 };
        let host = |error: rustix::io::Errno| MemoryError::Host {
            bytes: size,
            action: "reserving addresses",
            source: error.into(),
        };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the host chooses.
        let found = unsafe { mmap_anonymous(ptr::null_mut(), size + alignment, ProtFlags::empty(), flags) };
        let found = found.map_err(host)?.cast::<u8>();
        let before = found.align_offset(alignment);
        let base = found.wrapping_add(before);
        for (start, length) in [(found, before), (base.wrapping_add(size), alignment - before)] {
            if length > 0 {
                // SAFETY: a part of the mapping just made, which no other code has seen.
                unsafe { munmap(start.cast(), length) }.map_err(host)?;
            }
        }
        Ok(HostMemory { base, bytes: size, backing: Backing::Small })
    }

    fn back_reserved(self) -> Result<HostMemory, MemoryError> {
        let bytes = self.bytes;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // Test with a mapping elsewhere first. Reserved pages are often missing, and then this mapping must stay.
        // SAFETY: a new mapping, unmapped at once.
        let there = unsafe {
            mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
                .and_then(|found| munmap(found, bytes))
        };
        match there.and_then(|()| self.replaced(flags, Backing::Reserved)) {
            Ok(memory) => Ok(memory),
            Err(rustix::io::Errno::NOMEM) => {
                let needed = bytes / MIB_2;
                let pages = |name| {
                    let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
                    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0usize)
                };
                let free = pages("free_hugepages").saturating_sub(pages("resv_hugepages"));
                let total = pages("nr_hugepages") + needed.saturating_sub(free);
                Err(MemoryError::TooFewHugePages { needed, free, total })
            }
            Err(error) => Err(refused(bytes, "mapping reserved huge pages", error)),
        }
    }

    fn back_transparent(self) -> Result<HostMemory, MemoryError> {
        let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if enabled.is_empty() || enabled.contains("[never]") {
            return Err(MemoryError::NoTransparentHugePages);
        }
        let mut memory = self.back_small()?;
        // SAFETY: the range is this mapping; the advice changes no contents.
        unsafe { madvise(memory.base.cast(), memory.bytes, Advice::LinuxHugepage) }
            .map_err(|error| memory.refused("asking for huge pages", error))?;
        memory.backing = Backing::Transparent;
        Ok(memory)
    }

    fn back_small(self) -> Result<HostMemory, MemoryError> {
        // SAFETY: the range is this mapping, which is not in use yet.
        unsafe { mprotect(self.base.cast(), self.bytes, MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(|error| self.refused("making it accessible", error))?;
        Ok(self)
    }

    fn back_shared(self) -> Result<HostMemory, MemoryError> {
        let bytes = self.bytes;
        self.replaced(MapFlags::SHARED | MapFlags::NORESERVE, Backing::Shared)
            .map_err(|error| refused(bytes, "mapping shared memory", error))
    }

    /// Replaces the mapping by another one at the same address.
    fn replaced(mut self, flags: MapFlags, backing: Backing) -> Result<HostMemory, rustix::io::Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces this mapping, which is not in use yet.
        let mapped =
            unsafe { mmap_anonymous(self.base.cast(), self.bytes, protection, flags | MapFlags::FIXED) };
        if let Err(error) = mapped {
            // The kernel may have unmapped the old mapping, and another thread may have mapped these addresses
            // since. This function must therefore not unmap them.
            std::mem::forget(self);
            return Err(error);
        }
        self.backing = backing;
        Ok(self)
    }

    fn refused(&self, action: &'static str, error: rustix::io::Errno) -> MemoryError {
        refused(self.bytes, action, error)
    }
}

fn refused(bytes: usize, action: &'static str, error: rustix::io::Errno) -> MemoryError {
    MemoryError::Host { bytes, action, source: error.into() }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and the users of its frames keep it alive.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_writable() {
        let memory = HostMemory::map(5 << 20, Backing::Small).unwrap();
        assert_eq!(memory.bytes(), 6 << 20);
        assert_eq!(memory.base() as usize % MIB_2, 0);
        let last = memory.base().wrapping_add(memory.bytes() - 1);
        // SAFETY: the last byte of the mapping.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
    }

    #[test]
    fn shared_memory_is_a_forked_childs_too() {
        let memory = HostMemory::map(2 << 20, Backing::Shared).unwrap();
        // SAFETY: the child writes to the mapping and ends; it calls nothing else.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                memory.base().write(7);
                libc::_exit(0);
            }
            assert!(child > 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!((status, memory.base().read()), (0, 7));
        }
    }

    #[test]
    fn large_memory_is_on_a_boundary_of_1_gib() {
        let memory = HostMemory::map(GIB, Backing::Small).unwrap();
        assert_eq!(memory.base() as usize % GIB, 0);
    }

    #[test]
    fn missing_huge_pages_are_reported_with_the_setting_that_helps() {
        // 32 TiB in reserved huge pages: no machine has them.
        match HostMemory::map(1 << 45, Backing::Reserved) {
            Err(error @ MemoryError::TooFewHugePages { needed: 16_777_216, .. }) => {
                assert!(error.to_string().contains("sysctl vm.nr_hugepages="), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(HostMemory::map(0, Backing::Small), Err(MemoryError::Size(0))));
        assert!(matches!(HostMemory::map(usize::MAX, Backing::Best), Err(MemoryError::Size(_))));
    }

    #[test]
    fn the_best_backing_is_one_that_works() {
        let memory = HostMemory::map(4 << 20, Backing::Best).unwrap();
        assert_ne!(memory.backing(), Backing::Best);
        memory.prefault().unwrap();
        // SAFETY: a byte of the mapping.
        unsafe { memory.base().write(1) };
    }
}
