//! Address space: as much as the storage may ever have, of which only pages that are in the pool use memory.

use std::ffi::c_void;
use std::ptr::null_mut;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};

/// Anonymous memory that is unmapped when dropped, zero at first.
pub(crate) struct Region {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address range; who may use what is in it is its user's business.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves it. What is not touched uses no memory, and a touched page is 4 KiB.
    pub fn new(bytes: usize) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(|error| Error::AddressSpace { bytes, reason: explain(error) })?;
        let region = Self { base: base.cast(), bytes };
        // Pages come and go one by one. Kernels without huge pages refuse the advice, and need none.
        // SAFETY: advice about our own mapping.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxNoHugepage) };
        Ok(region)
    }

    /// Its first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; guards into it borrow the pool and are gone. A failure would leave address
        // space reserved until the process ends.
        let _ = unsafe { munmap(self.base.cast::<c_void>(), self.bytes) };
    }
}

/// Which setting keeps the kernel from reserving.
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
