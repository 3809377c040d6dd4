//! Detaching page tables, and putting them back.

use std::ffi::c_void;
use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::CHUNK;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::exclude_from_dumps;

/// A flag of `mremap`: the old mapping stays, without pages.
const DONTUNMAP: libc::c_int = 4;

/// Moves the page tables of one mapping, or of a part of one. Returns their new address.
///
/// # Safety
/// The same as for [`Region::move_tables`].
unsafe fn move_mapping(from: usize, to: To, len: usize) -> Result<usize, Errno> {
    let (fixed, to) = match to {
        To::Address(to) => (libc::MREMAP_FIXED, to),
        To::Anywhere(hint) => (0, hint),
    };
    let flags = libc::MREMAP_MAYMOVE | DONTUNMAP | fixed;
    let from = std::ptr::without_provenance_mut::<c_void>(from);
    let to = std::ptr::without_provenance_mut::<c_void>(to);
    // A bare system call, because a program may have replaced the C library's function.
    // SAFETY: by the caller's promise.
    match unsafe { libc::syscall(libc::SYS_mremap, from, len, len, flags, to) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        at => Ok(at as usize),
    }
}

/// The destination of page tables.
enum To {
    /// This address. Its mapping is unmapped first, even if the move then fails.
    Address(usize),
    /// An address without a mapping; this one if it has none.
    Anywhere(usize),
}

/// Drops the page-table entries of mapped pages, and the copies of privately mapped pages.
///
/// # Safety
/// The copies must not be needed any more.
pub(super) unsafe fn drop_pages(at: usize, len: usize) -> Result<(), Errno> {
    let at = std::ptr::without_provenance_mut(at);
    // SAFETY: by the caller's promise.
    match unsafe { madvise(at, len, Advice::LinuxDontneedLocked) } {
        // Linux before 5.18 has no advice that drops pages locked in memory.
        // SAFETY: by the caller's promise.
        Err(Errno::INVAL) => unsafe { madvise(at, len, Advice::LinuxDontNeed) },
        dropped => dropped,
    }
}

impl Region {
    /// Moves the page tables of a part of the region, and the mappings themselves, to another address. The old
    /// mappings stay, without tables.
    ///
    /// # Errors
    /// There is no memory, or the limit of mappings is reached. A part of the tables may have been moved.
    ///
    /// # Safety
    /// The mapping at `to` and the tables at `from` must not be in use. The caller must hold the state's lock.
    pub(super) unsafe fn move_tables(&self, from: usize, to: usize, len: usize) -> Result<(), Errno> {
        let mut moved = 0;
        while moved < len {
            let end = self.maps.end_of(from + moved)?;
            let part = end.min(from + len) - from - moved;
            // SAFETY: by the caller's promise.
            unsafe { move_mapping(from + moved, To::Address(to + moved), part) }?;
            moved += part;
        }
        Ok(())
    }

    /// Moves the page tables of a part of one mapping to an address without a mapping, and returns that address.
    /// The old mapping stays, without tables.
    ///
    /// # Safety
    /// The tables must not be in use. The caller must hold the state's lock.
    pub(super) unsafe fn move_away(&self, from: usize, len: usize) -> Result<usize, Errno> {
        const TABLE: usize = CHUNK * PAGE;
        let (none, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // The kernel moves whole tables only between addresses with the same offset in a table. If another thread
        // maps memory at the hint first, the kernel chooses another address, and moves single entries.
        // SAFETY: a new mapping, unmapped at once.
        let hint = unsafe {
            let room = mmap_anonymous(std::ptr::null_mut(), len + 2 * TABLE, none, flags)?;
            munmap(room, len + 2 * TABLE)?;
            (room as usize).next_multiple_of(TABLE) + from % TABLE
        };
        // SAFETY: by the caller's promise; nothing is replaced.
        unsafe { move_mapping(from, To::Anywhere(hint), len) }
    }

    /// Makes all pages in use private, so that the file keeps their present content. Returns whether only tables
    /// had to be moved.
    pub(super) fn make_private(&self, state: &mut State) -> Result<bool, Errno> {
        if self.is_pinned() {
            return Ok(false);
        }
        let used = self.used().next_multiple_of(CHUNK).min(self.pages);
        if state.private.is_empty() {
            let moved = self.make_part_private(0..used)?;
            state.private = 0..used;
            return Ok(moved);
        }
        // Pages that are not merged yet stay private.
        let mut moved = state.private.start == 0;
        if state.private.start > 0 {
            self.make_part_private(0..state.private.start)?;
            state.private.start = 0;
        }
        if used > state.private.end {
            moved &= self.make_part_private(state.private.end..used)?;
            state.private.end = used;
        }
        Ok(moved)
    }

    fn make_part_private(&self, part: Range<usize>) -> Result<bool, Errno> {
        if part.is_empty() {
            return Ok(true);
        }
        let (at, aside, len) = (self.address(part.start), self.aside + part.start * PAGE, part.len() * PAGE);
        // SAFETY: two mappings of the region's file. A thread that accesses the part sees the file's content until
        // the next step.
        let moved = unsafe { self.move_tables(at, aside, len) };
        if moved.is_err() {
            // The destination is unmapped first, even if the move fails.
            // SAFETY: no snapshot reads it. A snapshot in this process begins only when everything is shared, and
            // then fails.
            unsafe { self.share(&part, aside) }?;
        }
        // SAFETY: it replaces the region's own mapping by the same content. If the tables could not be moved, this
        // removes them.
        match unsafe { self.map_privately(&part) } {
            Ok(()) => {
                // Core dumps must not contain the pages twice.
                exclude_from_dumps(aside, len);
                Ok(moved.is_ok())
            }
            Err(error) => {
                // The shared mapping may be missing at this address.
                let _ = self.make_shared(part);
                Err(error)
            }
        }
    }

    /// Maps a part of the file privately, without tables, at the owner's address.
    ///
    /// # Safety
    /// It must replace a mapping of the same content, or nothing.
    pub(super) unsafe fn map_privately(&self, part: &Range<usize>) -> Result<(), Errno> {
        let at = std::ptr::without_provenance_mut(self.address(part.start));
        let len = part.len() * PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: by the caller's promise.
        unsafe {
            mmap(at, len, access, flags, &self.file, (part.start * PAGE) as u64)?;
            // With huge pages, the first write would remove a huge page's entry, and with it those of 512 pages.
            let _ = madvise(at, len, Advice::LinuxNoHugepage);
        }
        Ok(())
    }

    /// Makes a part shared again. The file must have its content.
    pub(super) fn make_shared(&self, part: Range<usize>) -> Result<(), Errno> {
        let (at, aside, len) = (self.address(part.start), self.aside + part.start * PAGE, part.len() * PAGE);
        // SAFETY: it replaces the region's own mapping by the same content.
        match unsafe { self.move_tables(aside, at, len) } {
            Ok(()) => {
                // SAFETY: the region's mapping, which was excluded from dumps while it was aside.
                let _ = unsafe { madvise(std::ptr::without_provenance_mut(at), len, Advice::LinuxDoDump) };
                Ok(())
            }
            // SAFETY: as above, with new tables. No child is forked meanwhile, because the state is locked.
            Err(_) => unsafe { self.share(&part, at) },
        }
    }

    /// Drops some of the detached tables, beginning with the first of `pages`. Returns the next page to continue
    /// with, if there are more. The tables should be dropped because they count as memory of the process, in
    /// addition to the owner's tables.
    pub(super) fn drop_some_detached(&self, pages: Range<usize>) -> Option<usize> {
        /// Number of pages whose tables are dropped at a time.
        const STEP: usize = 32 * CHUNK;
        let end = pages.end.min(pages.start + STEP);
        // SAFETY: the content is in the file. A thread that reads it there faults it in again.
        let _ = unsafe { drop_pages(self.aside + pages.start * PAGE, (end - pages.start) * PAGE) };
        (end < pages.end).then_some(end)
    }

    /// Sets the advice for a shared mapping of the region.
    ///
    /// # Errors
    /// Children would inherit the mapping.
    pub(super) fn advise(&self, at: usize, len: usize) -> Result<(), Errno> {
        let at = std::ptr::without_provenance_mut(at);
        if self.huge_pages {
            // SAFETY: the region's mapping; a kernel without huge pages for it refuses.
            let _ = unsafe { madvise(at, len, Advice::LinuxHugepage) };
        }
        // SAFETY: the region's mapping. Children must not inherit shared mappings.
        unsafe { madvise(at, len, Advice::LinuxDontFork) }
    }

    /// Tests whether tables of the region can be moved, by moving those of its first page there and back.
    pub(super) fn try_to_move(&self) -> Result<(), Errno> {
        // SAFETY: two mappings of the region's file, before it has any content.
        unsafe {
            self.move_tables(self.base, self.aside, PAGE)?;
            self.move_tables(self.aside, self.base, PAGE)
        }
    }

    /// Maps a part of the file shared.
    ///
    /// # Safety
    /// It must replace a mapping of the region on which no code relies.
    unsafe fn share(&self, part: &Range<usize>, at: usize) -> Result<(), Errno> {
        let (place, len, offset) =
            (std::ptr::without_provenance_mut(at), part.len() * PAGE, (part.start * PAGE) as u64);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: by the caller's promise.
        unsafe { mmap(place, len, access, flags | MapFlags::SHARED, &self.file, offset) }?;
        self.advise(at, len).inspect_err(|_| {
            // Children must never share it.
            // SAFETY: it replaces the mapping by the same content.
            let _ = unsafe { mmap(place, len, access, flags | MapFlags::PRIVATE, &self.file, offset) };
        })
    }
}
