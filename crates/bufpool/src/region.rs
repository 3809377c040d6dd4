//! Reservations of address space. A reserved page uses memory only after it has been touched.

use std::ffi::c_void;
use std::ptr::null_mut;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};

/// The size and the alignment of a huge page, where pages have 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// Anonymous memory of zeros that is unmapped when dropped.
pub(crate) struct Region {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a region is an address range. Its owner synchronises the use of the memory in it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves a region of pages of 4 KiB.
    pub fn new(bytes: usize) -> Result<Self> {
        let region = Self::map(bytes)?;
        // The pages of the region are mapped and unmapped one by one. A kernel without huge pages refuses the advice, and needs
        // none.
        region.advise(Advice::LinuxNoHugepage);
        Ok(region)
    }

    /// Reserves a region that begins where a huge page can begin. The kernel uses huge pages for it if it has any and the
    /// setting `/sys/kernel/mm/transparent_hugepage/enabled` is not `never`. Only whole huge pages of the region are
    /// huge, so it never uses more memory than its size.
    pub fn huge(bytes: usize) -> Result<Self> {
        if bytes < HUGE_PAGE {
            return Self::map(bytes);
        }
        // The mapping would begin at any address. So the function reserves more than needed, and unmaps both ends.
        let mut region = Self::map(bytes + HUGE_PAGE)?;
        let before = region.base.addr().next_multiple_of(HUGE_PAGE) - region.base.addr();
        let (start, end) = (region.base, region.base.wrapping_add(before + bytes));
        region.base = start.wrapping_add(before);
        region.bytes = bytes;
        for (address, rest) in [(start, before), (end, HUGE_PAGE - before)] {
            if rest > 0 {
                // SAFETY: a part of the mapping that no other code uses yet. After a failure it stays reserved, at no cost.
                let _ = unsafe { munmap(address.cast::<c_void>(), rest) };
            }
        }
        region.advise(Advice::LinuxHugepage);
        Ok(region)
    }

    fn map(bytes: usize) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(|error| Error::AddressSpace { bytes, reason: explain(error) })?;
        Ok(Self { base: base.cast(), bytes })
    }

    fn advise(&self, advice: Advice) {
        // Advice changes no content, so it does not matter whether the kernel accepts it.
        // SAFETY: it concerns this mapping only.
        let _ = unsafe { madvise(self.base.cast::<c_void>(), self.bytes, advice) };
    }

    /// The first byte of the region.
    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; guards into it borrow the pool, so none exists any more. After a failure, the
        // address space stays reserved until the process ends.
        let _ = unsafe { munmap(self.base.cast::<c_void>(), self.bytes) };
    }
}

/// Names the setting that prevents the reservation.
fn explain(error: Errno) -> String {
    let instead = "or use the hashtable engine, which takes no more than its memory";
    if error == Errno::NOMEM || error == Errno::AGAIN {
        if let Some(limit) = getrlimit(Resource::As).current {
            return format!("RLIMIT_AS is {limit} bytes: raise it (`ulimit -v unlimited`), {instead}");
        }
        if std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2") {
            return format!(
                "vm.overcommit_memory is 2, which counts reservations as memory: \
                 `sysctl vm.overcommit_memory=0`, {instead}"
            );
        }
    }
    format!("{error}; choose a smaller capacity, {instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_for_huge_pages_are_aligned_and_usable_to_the_last_byte() {
        for bytes in [4096, HUGE_PAGE - 4096, HUGE_PAGE, HUGE_PAGE + 4096, 5 * HUGE_PAGE] {
            let region = Region::huge(bytes).unwrap();
            assert!(bytes < HUGE_PAGE || region.base().addr().is_multiple_of(HUGE_PAGE), "{bytes}");
            for at in [0, bytes / 2, bytes - 1] {
                let byte = region.base().wrapping_add(at);
                // SAFETY: in the region, which no other code uses.
                unsafe {
                    assert_eq!(byte.read_volatile(), 0);
                    byte.write_volatile(1);
                }
            }
        }
    }
}
