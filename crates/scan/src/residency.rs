//! The part of a file that is in the page cache. A program reads this part faster through the cache than past it.
//!
//! Since Linux 6.5, `cachestat` reports the number of cached pages. Older kernels, and some filters of system calls, refuse that
//! call. Then this module maps the file, and `mincore` reports page by page. Both calls answer only a process that owns the file
//! or may write it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::geteuid;

use crate::{Error, Result};

const PAGE: u64 = 4096;
/// Bytes of a file that are mapped at a time.
const MAPPED: u64 = 64 << 20;
/// The same number on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// Counts the bytes of a range of a file that are in the page cache. The unit of counting is a whole page of 4 KiB, but the
/// result is never more than the length of the range. The call reads no data. The range may end after the file's end.
///
/// The kernel checks each page of the range that is in the page cache. The answer may be out of date when the call returns.
///
/// # Errors
/// [`Error::System`]: with [`Errno::PERM`] if the process neither owns the file nor may write it, because the kernel does not
/// answer such a process.
pub fn resident_bytes(file: &File, range: Range<u64>) -> Result<u64> {
    if range.is_empty() {
        return Ok(0);
    }
    let resident = match by_cachestat(file.as_fd(), &range) {
        Err(Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP) => by_mincore(file, &range),
        known => known,
    };
    let bytes = resident.map_err(Error::system("asking what of a file is in the page cache"))? * PAGE;
    Ok(bytes.min(range.end - range.start))
}

/// Counts the pages of a range that are in the page cache, by `cachestat`.
fn by_cachestat(file: BorrowedFd<'_>, range: &Range<u64>) -> rustix::io::Result<u64> {
    /// The kernel's `struct cachestat`: pages in the cache, dirty ones, and three more numbers.
    type Answer = [u64; 5];
    // The kernel's `struct cachestat_range`. The kernel also counts the pages in which the range begins and ends.
    let asked = [range.start, range.end - range.start];
    let mut answer = Answer::default();
    // SAFETY: the kernel reads one array and fills in the other. Both are as large as its structures.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), asked.as_ptr(), answer.as_mut_ptr(), 0) };
    match result {
        0 => Ok(answer[0]),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Counts the same pages from a mapping of the file, by `mincore`.
fn by_mincore(file: &File, range: &Range<u64>) -> rustix::io::Result<u64> {
    // To any other process the kernel reports all pages as resident.
    if !is_told(file)? {
        return Err(Errno::PERM);
    }
    let size = rustix::fs::fstat(file)?.st_size as u64;
    let (mut at, end) = (range.start / PAGE * PAGE, range.end.min(size));
    let (mut resident, mut pages) = (0, vec![0u8; (MAPPED / PAGE) as usize]);
    while at < end {
        let bytes = (end - at).min(MAPPED);
        let pages = &mut pages[..bytes.div_ceil(PAGE) as usize];
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: this is a new mapping at an address of the kernel's choice. No thread reads it, and it is unmapped again.
        // `mincore` fills in one byte for each of its pages.
        let answered = unsafe {
            let map = rustix::mm::mmap(std::ptr::null_mut(), bytes as usize, protection, flags, file, at)?;
            let answered = libc::mincore(map, bytes as usize, pages.as_mut_ptr());
            let error = io::Error::last_os_error();
            rustix::mm::munmap(map, bytes as usize)?;
            if answered == 0 { Ok(()) } else { Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)) }
        };
        answered?;
        resident += pages.iter().filter(|page| **page & 1 != 0).count() as u64;
        at += bytes;
    }
    Ok(resident)
}

/// Whether `mincore` reports the real state of a file to this process.
fn is_told(file: &File) -> rustix::io::Result<bool> {
    if rustix::fs::fstat(file)?.st_uid == geteuid().as_raw() {
        return Ok(true);
    }
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::accessat(rustix::fs::CWD, name, Access::WRITE_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(true),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::Advice;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Creates a file without any page in the page cache, on the disk that has the build. `None`, after a message, if that is a
    /// tmpfs.
    fn cold(bytes: u64) -> Option<File> {
        const TMPFS: u64 = 0x0102_1994;
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        if rustix::fs::fstatfs(&file).unwrap().f_type as u64 == TMPFS {
            println!("skipped: the build is on a tmpfs, all of whose files are in memory");
            return None;
        }
        file.write_all_at(&vec![1; bytes as usize], 0).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        Some(file)
    }

    #[test]
    fn what_is_read_is_resident_and_what_is_dropped_is_not() {
        let Some(file) = cold(8 * MIB + 100) else { return };
        assert_eq!(resident_bytes(&file, 0..9 * MIB).unwrap(), 0);
        // Disables the kernel's readahead.
        rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
        file.read_exact_at(&mut vec![0; 8192], 2 * MIB).unwrap();
        assert_eq!(resident_bytes(&file, 0..9 * MIB).unwrap(), 8192);
        assert_eq!(resident_bytes(&file, 2 * MIB..2 * MIB + 4096).unwrap(), 4096);
        assert_eq!(resident_bytes(&file, 2 * MIB + 10..2 * MIB + 20).unwrap(), 10);
        assert_eq!(resident_bytes(&file, 3 * MIB..9 * MIB).unwrap(), 0);
        file.read_exact_at(&mut vec![0; 8 * MIB as usize + 100], 0).unwrap();
        assert_eq!(resident_bytes(&file, 0..8 * MIB + 100).unwrap(), 8 * MIB + 100);
        let nothing = 5..5;
        assert_eq!(resident_bytes(&file, nothing).unwrap(), 0);
        assert_eq!(resident_bytes(&file, 20 * MIB..30 * MIB).unwrap(), 0, "behind the file's end");
    }

    #[test]
    fn both_ways_say_the_same() {
        let Some(file) = cold(70 * MIB) else { return };
        rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
        for at in [0, 63 * MIB, 64 * MIB - 4096, 64 * MIB, 69 * MIB] {
            file.read_exact_at(&mut [0; 4096], at).unwrap();
        }
        for range in [0..70 * MIB, 0..1, 63 * MIB..65 * MIB, MIB..2 * MIB, 64 * MIB - 1..100 * MIB] {
            let mapped = by_mincore(&file, &range).unwrap();
            match by_cachestat(file.as_fd(), &range) {
                Ok(asked) => assert_eq!(asked, mapped, "{range:?}"),
                Err(error) => println!("skipped: cachestat: {error}"),
            }
        }
        assert_eq!(by_mincore(&file, &(0..70 * MIB)).unwrap(), 5);
    }
}
