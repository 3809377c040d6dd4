//! The file behind a region, and its mapping.
//!
//! The kernel's cost of write-protecting a page is mostly an access to the page's descriptor. Pages of one large
//! folio share a descriptor. Newer kernels therefore protect such pages up to four times faster, although the owner
//! and the snapshots still see single pages. The options of a file system determine whether files get large folios.
//! Where it is allowed, the file is therefore in its own instance of tmpfs, which is not mounted anywhere and
//! disappears with the file.

use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SeekFrom, fallocate, ftruncate, memfd_create, openat, seek,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

use rustix::process::{Resource, getrlimit};

use super::above_standard::above_standard;
use super::filter;
use crate::{Error, Kind, PAGE};

/// Size in bytes of the largest folio. A folio is mapped in one piece only if its offsets in the file and in memory
/// agree modulo this size.
const LARGE: usize = 2 << 20;
/// Size in bytes that a page table of the next level maps. Memory of at least this size is aligned to it.
const GIANT: usize = 1 << 30;

/// Creates a file without a name. Also returns whether it has large folios.
///
/// # Errors
/// `EFBIG` if the limit on the size of files is lower than `bytes`.
pub(crate) fn file(bytes: usize, large_folios: bool) -> Result<(OwnedFd, bool), Errno> {
    // The limit is checked first, because exceeding it causes a signal that ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < bytes as u64) {
        return Err(Errno::FBIG);
    }
    // This needs privileges, and not all kernels support it.
    let (file, large) = match large_folios.then(of_its_own_instance) {
        Some(Ok(file)) => (above_standard(file)?, true),
        _ => (memory_file(c"bedplate-region", MemfdFlags::empty())?, false),
    };
    ftruncate(&file, bytes as u64)?;
    Ok((file, large))
}

/// Creates a memory file without a name.
pub(crate) fn memory_file(name: &CStr, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | MemfdFlags::CLOEXEC;
    // If `vm.memfd_noexec` is 2, memory files must not be executable. Linux before 6.3 does not know the flag.
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    };
    above_standard(file?)
}

/// The error of an engine whose file could not be created.
pub(crate) fn no_file(error: Errno, engine: Kind) -> Error {
    match error {
        Errno::FBIG => Error::Unavailable {
            engine,
            reason: "the limit on the size of files (`ulimit -f`) is lower than the memory's size".into(),
        },
        error => Error::System { what: "making the region's file", source: error },
    }
}

/// Returns the memory of pages of a file to the kernel, in all mappings that have no copies of them.
pub(crate) fn punch(file: &OwnedFd, pages: Range<usize>) {
    if pages.is_empty() {
        return;
    }
    let (offset, len) = ((pages.start * PAGE) as u64, (pages.len() * PAGE) as u64);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    while fallocate(file, hole, offset, len) == Err(Errno::INTR) {}
}

/// The first run of pages, among `pages`, that the file has memory for.
pub(crate) fn next_data(file: &OwnedFd, pages: Range<usize>) -> Result<Option<Range<usize>>, Errno> {
    let offset = |page: usize| (page * PAGE) as u64;
    let start = match seek(file, SeekFrom::Data(offset(pages.start))) {
        Ok(start) => start as usize / PAGE,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error),
    };
    let end = seek(file, SeekFrom::Hole(offset(start)))? as usize / PAGE;
    Ok((start < pages.end).then_some(start..end.min(pages.end)))
}

fn of_its_own_instance() -> Result<OwnedFd, Errno> {
    if !filter::permits(&[libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount]) {
        return Err(Errno::PERM);
    }
    let instance = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&instance, c"huge", c"always")?;
    // Only memory limits the size, as for any other memory.
    fsconfig_set_string(&instance, c"size", c"0")?;
    fsconfig_create(&instance)?;
    let root = fsmount(&instance, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    openat(&root, c".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

/// Maps the file shared.
pub(crate) fn map(file: &OwnedFd, bytes: usize, protection: ProtFlags) -> Result<usize, Errno> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let align = if bytes >= GIANT { GIANT } else { LARGE };
    // SAFETY: a new mapping at an address of the kernel's choice. A part of it is replaced by the file's mapping,
    // and the rest is unmapped.
    unsafe {
        let none = ProtFlags::empty();
        let room = mmap_anonymous(std::ptr::null_mut(), bytes + align, none, MapFlags::PRIVATE)?;
        let start = (room as usize).next_multiple_of(align);
        let before = start - room as usize;
        let mapped = mmap(room.byte_add(before), bytes, protection, flags | MapFlags::FIXED, file, 0);
        if let Err(error) = mapped {
            let _ = munmap(room, bytes + align);
            return Err(error);
        }
        if before > 0 {
            let _ = munmap(room, before);
        }
        if before < align {
            let _ = munmap(room.byte_add(before + bytes), align - before);
        }
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::region::filter::tests::{KILL, with_filter};

    /// Services of systemd, for instance, may not mount.
    #[test]
    fn a_file_is_made_where_mounting_ends_the_process() {
        for call in [libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount] {
            assert_eq!(with_filter(call, KILL, || file(PAGE, true).is_ok_and(|(_, large)| !large)), 0);
        }
    }

    #[test]
    fn files_are_not_what_programs_write_messages_to() {
        // SAFETY: the child only makes system calls and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let is_above = |large| file(PAGE, large).is_ok_and(|(file, _)| file.as_raw_fd() > 2);
            // SAFETY: no other code in this process needs them.
            unsafe {
                for standard in 0..3 {
                    libc::close(standard);
                }
                libc::_exit(i32::from(!is_above(false) || !is_above(true)));
            }
        }
        let mut status = -1;
        // SAFETY: waits for the child.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
