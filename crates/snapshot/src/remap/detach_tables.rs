//! How page tables are detached and put back.

use std::ffi::c_void;
use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::CHUNK;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::exclude_from_dumps;

/// Of the C library's `mremap`: the old mapping stays, empty.
const DONTUNMAP: libc::c_int = 4;

/// Moves the page tables of one mapping, or of a part of one, and gives where they are.
///
/// # Safety
/// As [`Region::move_tables`].
unsafe fn move_mapping(from: usize, to: To, len: usize) -> Result<usize, Errno> {
    let (fixed, to) = match to {
        To::Address(to) => (libc::MREMAP_FIXED, to),
        To::Anywhere(hint) => (0, hint),
    };
    let flags = libc::MREMAP_MAYMOVE | DONTUNMAP | fixed;
    let from = std::ptr::without_provenance_mut::<c_void>(from);
    let to = std::ptr::without_provenance_mut::<c_void>(to);
    // Not by the C library's function, which may be the program's.
    // SAFETY: as the caller says.
    match unsafe { libc::syscall(libc::SYS_mremap, from, len, len, flags, to) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        at => Ok(at as usize),
    }
}

/// Where page tables are moved.
enum To {
    /// To this address. Its mapping is unmapped first, even if the move fails then.
    Address(usize),
    /// To an address without a mapping; to this one if it has none.
    Anywhere(usize),
}

/// Drops the entries of pages that are mapped, and the copies of those that are mapped privately.
///
/// # Safety
/// The copies are not needed any more.
pub(super) unsafe fn drop_pages(at: usize, len: usize) -> Result<(), Errno> {
    let at = std::ptr::without_provenance_mut(at);
    // SAFETY: as the caller says.
    match unsafe { madvise(at, len, Advice::LinuxDontneedLocked) } {
        // Linux before 5.18 has no advice that drops pages which are locked in memory.
        // SAFETY: as the caller says.
        Err(Errno::INVAL) => unsafe { madvise(at, len, Advice::LinuxDontNeed) },
        dropped => dropped,
    }
}

impl Region {
    /// Moves the page tables of the region's mappings between two addresses to another place, with the mappings
    /// themselves. They stay where they were, too, without tables.
    ///
    /// # Errors
    /// There is no memory, or there are as many mappings as there can be. A part of the tables may have been moved.
    ///
    /// # Safety
    /// The mapping at `to` and the tables at `from` are not in use. The caller holds the state's lock.
    pub(super) unsafe fn move_tables(&self, from: usize, to: usize, len: usize) -> Result<(), Errno> {
        let mut moved = 0;
        while moved < len {
            let end = self.maps.end_of(from + moved)?;
            let part = end.min(from + len) - from - moved;
            // SAFETY: as the caller says.
            unsafe { move_mapping(from + moved, To::Address(to + moved), part) }?;
            moved += part;
        }
        Ok(())
    }

    /// Moves the page tables of a part of one mapping to an address without a mapping, and gives the address. The part
    /// stays, without tables.
    ///
    /// # Safety
    /// The tables are not in use. The caller holds the state's lock.
    pub(super) unsafe fn move_away(&self, from: usize, len: usize) -> Result<usize, Errno> {
        const TABLE: usize = CHUNK * PAGE;
        let (none, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // The kernel moves whole tables between addresses with the same offset in a table. If another thread maps
        // something at the hint first, the kernel chooses another address, and moves single entries.
        // SAFETY: a new mapping, unmapped at once.
        let hint = unsafe {
            let room = mmap_anonymous(std::ptr::null_mut(), len + 2 * TABLE, none, flags)?;
            munmap(room, len + 2 * TABLE)?;
            (room as usize).next_multiple_of(TABLE) + from % TABLE
        };
        // SAFETY: as the caller says; nothing is replaced.
        unsafe { move_mapping(from, To::Anywhere(hint), len) }
    }

    /// Everything in use becomes private: the file keeps what it was. Gives whether that took moving tables only.
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
        // Pages that are not merged yet stay as they are.
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
        // SAFETY: two mappings of the region's file. Whoever accesses it now finds it as it is, until the next step.
        let moved = unsafe { self.move_tables(at, aside, len) };
        if moved.is_err() {
            // What is moved to is unmapped first, whether it comes to moving or not.
            // SAFETY: no snapshot reads it: one in this process begins when all is shared, and then fails.
            unsafe { self.share(&part, aside) }?;
        }
        // SAFETY: the same content as before in the place of the region's own mapping. When the tables could not be moved,
        // this takes them down.
        match unsafe { self.map_privately(&part) } {
            Ok(()) => {
                // A dump has nothing twice.
                exclude_from_dumps(aside, len);
                Ok(moved.is_ok())
            }
            Err(error) => {
                // The shared mapping may be gone from its place.
                let _ = self.make_shared(part);
                Err(error)
            }
        }
    }

    /// Maps a part of the file privately, without tables, where the owner has it.
    ///
    /// # Safety
    /// It replaces a mapping of the same content, or nothing.
    pub(super) unsafe fn map_privately(&self, part: &Range<usize>) -> Result<(), Errno> {
        let at = std::ptr::without_provenance_mut(self.address(part.start));
        let len = part.len() * PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as the caller says.
        unsafe {
            mmap(at, len, access, flags, &self.file, (part.start * PAGE) as u64)?;
            // The first write would take down a huge page's entry, and with it 512 pages'.
            let _ = madvise(at, len, Advice::LinuxNoHugepage);
        }
        Ok(())
    }

    /// A part becomes shared again, whose content the file has.
    pub(super) fn make_shared(&self, part: Range<usize>) -> Result<(), Errno> {
        let (at, aside, len) = (self.address(part.start), self.aside + part.start * PAGE, part.len() * PAGE);
        // SAFETY: the same content in the place of the region's own mapping.
        match unsafe { self.move_tables(aside, at, len) } {
            Ok(()) => {
                // SAFETY: the region's mapping; it had been kept from dumps while it was aside.
                let _ = unsafe { madvise(std::ptr::without_provenance_mut(at), len, Advice::LinuxDoDump) };
                Ok(())
            }
            // SAFETY: as above, with new tables. No child is forked meanwhile: the state is locked.
            Err(_) => unsafe { self.share(&part, at) },
        }
    }

    /// Drops tables that were detached, of pages from one on, and gives the page to go on from, if there are more: they
    /// count as memory of the process's, once more beside the owner's.
    pub(super) fn drop_some_detached(&self, pages: Range<usize>) -> Option<usize> {
        /// Pages of which the tables are dropped at a time.
        const STEP: usize = 32 * CHUNK;
        let end = pages.end.min(pages.start + STEP);
        // SAFETY: the content is the file's. Whoever reads it there faults it in again.
        let _ = unsafe { drop_pages(self.aside + pages.start * PAGE, (end - pages.start) * PAGE) };
        (end < pages.end).then_some(end)
    }

    /// The region's flags for a shared mapping of its own.
    ///
    /// # Errors
    /// Children would inherit it.
    pub(super) fn advise(&self, at: usize, len: usize) -> Result<(), Errno> {
        let at = std::ptr::without_provenance_mut(at);
        if self.huge_pages {
            // SAFETY: the region's mapping; a kernel that has no huge pages for it says no.
            let _ = unsafe { madvise(at, len, Advice::LinuxHugepage) };
        }
        // SAFETY: the region's mapping. What is shared is not for children.
        unsafe { madvise(at, len, Advice::LinuxDontFork) }
    }

    /// Whether tables of the region can be moved, by moving those of its first page there and back.
    pub(super) fn try_to_move(&self) -> Result<(), Errno> {
        // SAFETY: two mappings of the region's file, before anything is in it.
        unsafe {
            self.move_tables(self.base, self.aside, PAGE)?;
            self.move_tables(self.aside, self.base, PAGE)
        }
    }

    /// Maps a part of the file shared.
    ///
    /// # Safety
    /// It replaces a mapping of the region's that nobody relies on.
    unsafe fn share(&self, part: &Range<usize>, at: usize) -> Result<(), Errno> {
        let (place, len, offset) =
            (std::ptr::without_provenance_mut(at), part.len() * PAGE, (part.start * PAGE) as u64);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as the caller says.
        unsafe { mmap(place, len, access, flags | MapFlags::SHARED, &self.file, offset) }?;
        self.advise(at, len).inspect_err(|_| {
            // Children must never share it.
            // SAFETY: the same content in its place.
            let _ = unsafe { mmap(place, len, access, flags | MapFlags::PRIVATE, &self.file, offset) };
        })
    }
}
