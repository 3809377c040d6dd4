//! The memory that pages are delivered in: a memfd that the service reads into and workers map read-only.
//!
//! Frames are never mapped or unmapped while scans run: a frame is handed to a worker by an entry of its board. Who gets
//! the memfd later than the service cannot map it writable, because it is sealed.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::{Error, Result};

/// Bytes of a frame: a huge page of x86-64, the unit of device requests (paper 3.3.2).
pub const FRAME: usize = 2 << 20;

/// How often a place is looked for that is as it should be.
const ATTEMPTS: usize = 8;

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

/// A part of a file that is mapped shared.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory; who reads and writes what in it when is its users' business.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file.
    pub fn of(file: impl AsFd, offset: u64, bytes: usize, access: Access) -> Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let map = |at, flags| {
            // SAFETY: a new mapping, where there is none: flags have `FIXED_NOREPLACE` at most.
            unsafe { mmap(at, bytes, protection, MapFlags::SHARED | flags, &file, offset) }
        };
        // Pages can be huge only at multiples of their size. Somebody else may map something there meanwhile, but not often.
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

    /// Maps frames for a worker, so that it does not fault when it reads them.
    pub fn view(file: impl AsFd, bytes: usize) -> Result<Self> {
        let mapping = Self::of(file, 0, bytes, Access::Read)?;
        // Faults are all that is saved; they are few where pages are huge.
        let _ = mapping.advise(Advice::LinuxPopulateRead);
        Ok(mapping)
    }

    /// Where it begins.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes huge pages of what is mapped, as far as there are any free. Whether all of it is.
    fn collapse(&self) -> bool {
        // SAFETY: it changes what memory is made of, not what is in it.
        unsafe { libc::madvise(self.start().cast(), self.bytes, libc::MADV_COLLAPSE) == 0 }
    }

    /// Makes the first page of each frame. Whether all of them are there.
    fn populate_firsts(&self) -> bool {
        (0..self.bytes)
            .step_by(FRAME)
            .all(|at| self.advise_part(at, rustix::param::page_size(), Advice::LinuxPopulateWrite).is_ok())
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        self.advise_part(0, self.bytes, advice)
    }

    fn advise_part(&self, at: usize, bytes: usize, advice: Advice) -> rustix::io::Result<()> {
        assert!(at + bytes <= self.bytes);
        // SAFETY: the part is within the mapping; none of the advices of this module changes what is in memory.
        unsafe { madvise(self.start().add(at).cast::<c_void>(), bytes, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start().cast(), self.bytes) };
    }
}

/// A multiple of [`FRAME`] from which on nothing is mapped at the moment.
fn free_and_aligned(bytes: usize) -> rustix::io::Result<*mut c_void> {
    let room = bytes + FRAME;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE) }?;
    let reserved = Mapping::at(start, room);
    Ok(reserved.start().map_addr(|start| start.next_multiple_of(FRAME)).cast())
}

/// What frames are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pages {
    /// Huge pages that the administrator reserved.
    Reserved,
    /// Transparent huge pages.
    Transparent,
    /// Normal pages of 4 KiB.
    Normal,
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reserved => "reserved huge pages",
            Self::Transparent => "transparent huge pages",
            Self::Normal => "pages of 4 KiB",
        })
    }
}

/// Frames, as the service has them.
#[derive(Debug)]
pub struct Frames {
    file: OwnedFd,
    mapping: Mapping,
    view: OnceLock<Arc<Mapping>>,
    pages: Pages,
}

impl Frames {
    /// Makes so many frames, with memory in all of them: transparent huge pages where there are any, else normal pages.
    pub fn new(count: usize) -> Result<Self> {
        Self::made(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING, count, Pages::Normal)
    }

    /// [`new`](Self::new), of huge pages that the administrator reserved if that is asked for and there are enough of them.
    pub(crate) fn with_reserved(is_asked_for: bool, count: usize) -> Result<Self> {
        if is_asked_for && let Ok(frames) = Self::reserved(count) { Ok(frames) } else { Self::new(count) }
    }

    fn reserved(count: usize) -> Result<Self> {
        let flags =
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        Self::made(flags, count, Pages::Reserved)
    }

    fn made(flags: MemfdFlags, count: usize, mut pages: Pages) -> Result<Self> {
        let file = memfd_create("bedplate-frames", flags).map_err(Error::system("creating frames"))?;
        let bytes = count * FRAME;
        ftruncate(&file, bytes as u64).map_err(Error::system("sizing frames"))?;
        let mapping = Mapping::of(&file, 0, bytes, Access::ReadWrite)?;
        // Before there are any pages; the kernel may not have huge ones, or the setting be against them.
        let _ = mapping.advise(Advice::LinuxHugepage);
        // Whatever the setting for shared memory is, collapsing succeeds where there are free huge pages, but not where there is
        // no page at all. With one in each frame it is 15 times as fast as with all of them.
        if pages == Pages::Normal && mapping.populate_firsts() && mapping.collapse() {
            pages = Pages::Transparent;
        }
        // All memory now: a worker that reads where none can be had would be killed, and reading into it would fail.
        match mapping.advise(Advice::LinuxPopulateWrite) {
            // Before Linux 5.14 it is populated by the first reads.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(Error::system("populating frames")(error)),
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(Error::system("sealing frames"))?;
        Ok(Self { file, mapping, view: OnceLock::new(), pages })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.mapping.bytes() / FRAME
    }

    /// What they are made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// What workers map, for one in another process, which may keep it for as long as it likes.
    pub fn lend(&self) -> &OwnedFd {
        &self.file
    }

    /// The mapping of workers in this process.
    pub fn view(&self) -> Result<Arc<Mapping>> {
        if let Some(view) = self.view.get() {
            return Ok(view.clone());
        }
        let view = Arc::new(Mapping::view(&self.file, self.mapping.bytes())?);
        Ok(self.view.get_or_init(|| view).clone())
    }

    /// The service's mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_where_huge_pages_can_be() {
        let frames = Frames::new(3).unwrap();
        let view = frames.view().unwrap();
        for mapping in [frames.mapping(), &*view] {
            assert_eq!((mapping.start().align_offset(FRAME), mapping.bytes()), (0, 3 * FRAME));
        }
        // SAFETY: within both mappings; nobody else has them.
        unsafe { frames.mapping().start().add(3 * FRAME - 1).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { view.start().add(3 * FRAME - 1).read() }, 7);
    }

    /// Huge pages of 2 MiB that are reserved and free.
    fn reserved_and_free() -> usize {
        std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
            .ok()
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Somebody reserved them, for something else.
    #[test]
    fn reserved_pages_are_taken_only_if_that_is_asked_for() {
        assert_ne!(Frames::new(1).unwrap().pages(), Pages::Reserved);
        assert_ne!(Frames::with_reserved(false, 1).unwrap().pages(), Pages::Reserved);
        // Others may take them meanwhile.
        let free = reserved_and_free();
        let frames = Frames::with_reserved(true, 1).unwrap();
        if free < 64 {
            eprintln!(
                "skipped: {free} huge pages are reserved and free (vm.nr_hugepages), too few to ask for any"
            );
            return;
        }
        assert_eq!(frames.pages(), Pages::Reserved);
    }

    /// What cannot be mapped leaves alone what other threads map at the same time.
    #[test]
    fn mapping_in_vain_does_no_harm() {
        // Huge pages that there are not: the kernel notices late, when it has made room for them.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let huge = memfd_create("too much", flags).unwrap();
        let bytes = 16 * FRAME;
        ftruncate(&huge, bytes as u64).unwrap();
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                for _ in 0..50_000 {
                    // It is in vain unless so many are reserved.
                    let _ = Mapping::of(&huge, 0, bytes, Access::ReadWrite);
                }
            });
            while !failing.is_finished() {
                std::thread::spawn(|| ()).join().unwrap();
                let _ = std::hint::black_box(vec![1u8; 1 << 20]);
            }
        });
    }

    #[test]
    fn workers_see_frames_and_cannot_write_to_them() {
        let frames = Frames::new(2).unwrap();
        assert_eq!(frames.count(), 2);
        let file = frames.lend();
        let view = Mapping::of(file, 0, 2 * FRAME, Access::Read).unwrap();
        // SAFETY: within both mappings; nobody else has them.
        unsafe { frames.mapping().start().add(FRAME).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { view.start().add(FRAME).read() }, 7);
        assert!(Mapping::of(file, 0, FRAME, Access::ReadWrite).is_err());
        // Nor by any other way that there is to a file.
        assert!(rustix::io::pwrite(file, &[1; 8], 0).is_err());
        assert!(ftruncate(file, 0).is_err());
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(file, punch, 0, FRAME as u64).is_err());
        assert!(fcntl_add_seals(file, SealFlags::WRITE).is_err());
        let protection = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: it is refused; if it were not, nobody has a reference to the mapping.
        let writable = unsafe { rustix::mm::mprotect(view.start().cast(), FRAME, protection) };
        assert!(writable.is_err());
        // SAFETY: within the mapping.
        assert_eq!(unsafe { view.start().add(FRAME).read() }, 7);
    }
}
