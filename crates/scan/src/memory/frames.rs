//! The frames of channels and pools. All of them have memory from the beginning.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::mapping::{Buffer, Mapping};
use super::{FRAME, memfd};
use crate::Result;

/// The kind of pages that back the frames.
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

/// The service's side of a memory of frames.
#[derive(Debug)]
pub struct Frames {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    view: OnceLock<Arc<Mapping>>,
    pages: Pages,
}

impl Frames {
    /// Creates `count` frames, all with memory. They consist of transparent huge pages if the kernel has enough, else of normal
    /// pages.
    ///
    /// # Errors
    /// The kernel cannot create the memfd, or has too little memory.
    pub fn new(count: usize) -> Result<Self> {
        let (file, mapping) = memfd::ordinary(count)?;
        let all = 0..mapping.bytes();
        let pages = if mapping.make_huge(all.clone()) { Pages::Transparent } else { Pages::Normal };
        // All memory must exist now. A worker would get SIGBUS at a page that the kernel cannot allocate, and reads into that
        // page would fail.
        mapping.populate(all)?;
        Ok(Self { file, mapping, view: OnceLock::new(), pages })
    }

    /// Like [`new`](Self::new), but with reserved huge pages if `is_asked_for` is true and enough of them are available.
    pub(crate) fn with_reserved(is_asked_for: bool, count: usize) -> Result<Self> {
        if is_asked_for && let Ok(frames) = Self::reserved(count) { Ok(frames) } else { Self::new(count) }
    }

    fn reserved(count: usize) -> Result<Self> {
        let (file, mapping) = memfd::reserved(count)?;
        mapping.populate(0..mapping.bytes())?;
        Ok(Self { file, mapping, view: OnceLock::new(), pages: Pages::Reserved })
    }

    /// Number of frames.
    pub fn count(&self) -> usize {
        self.mapping.bytes() / FRAME
    }

    /// The kind of pages that back the frames.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The memfd, for a worker in another process. The worker may keep it indefinitely.
    pub fn lend(&self) -> &OwnedFd {
        &self.file
    }

    /// The read-only mapping that all workers in this process share.
    pub fn view(&self) -> Result<Arc<Mapping>> {
        if let Some(view) = self.view.get() {
            return Ok(view.clone());
        }
        let view = Arc::new(Mapping::view(&self.file, self.mapping.bytes())?);
        Ok(self.view.get_or_init(|| view).clone())
    }

    /// The memory that the service reads into: all frames in sequence.
    pub fn buffer(&self) -> Buffer {
        Buffer::new(self.mapping.clone(), 0..self.mapping.bytes())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;
    use crate::memory::Access;

    #[test]
    fn frames_are_where_huge_pages_can_be() {
        let frames = Frames::new(3).unwrap();
        let view = frames.view().unwrap();
        for mapping in [&frames.mapping, &view] {
            assert_eq!((mapping.start().align_offset(FRAME), mapping.bytes()), (0, 3 * FRAME));
        }
        // SAFETY: the byte is within both mappings, and no other thread has them.
        unsafe { frames.mapping.start().add(3 * FRAME - 1).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { view.start().add(3 * FRAME - 1).read() }, 7);
    }

    /// Number of reserved huge pages of 2 MiB that are free.
    fn reserved_and_free() -> usize {
        std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
            .ok()
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// The service uses reserved pages only on request, because the administrator may have reserved them for another program.
    #[test]
    fn reserved_pages_are_taken_only_if_that_is_asked_for() {
        assert_ne!(Frames::new(1).unwrap().pages(), Pages::Reserved);
        assert_ne!(Frames::with_reserved(false, 1).unwrap().pages(), Pages::Reserved);
        // Other processes may take reserved pages in the meantime.
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

    /// A mapping that fails does not disturb mappings that other threads make at the same time.
    #[test]
    fn mapping_in_vain_does_no_harm() {
        // These are more huge pages than the kernel has. It detects this late, after it has found an address range.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let huge = memfd_create("too much", flags).unwrap();
        let bytes = 16 * FRAME;
        ftruncate(&huge, bytes as u64).unwrap();
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                for _ in 0..50_000 {
                    // The mapping fails unless 16 huge pages are reserved.
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
        // SAFETY: the byte is within both mappings, and no other thread has them.
        unsafe { frames.mapping.start().add(FRAME).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { view.start().add(FRAME).read() }, 7);
        assert!(Mapping::of(file, 0, FRAME, Access::ReadWrite).is_err());
        // The other ways to change a file also fail.
        assert!(rustix::io::pwrite(file, &[1; 8], 0).is_err());
        assert!(ftruncate(file, 0).is_err());
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(file, punch, 0, FRAME as u64).is_err());
        assert!(fcntl_add_seals(file, SealFlags::WRITE).is_err());
        let protection = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: the kernel refuses the change. Even if it did not, no reference to the mapping exists.
        let writable = unsafe { rustix::mm::mprotect(view.start().cast(), FRAME, protection) };
        assert!(writable.is_err());
        // SAFETY: the byte is within the mapping.
        assert_eq!(unsafe { view.start().add(FRAME).read() }, 7);
    }
}
