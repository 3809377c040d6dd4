//! How page tables are set aside and put back.

use std::ffi::c_void;
use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use super::CHUNK;
use super::region::{Region, State};
use crate::PAGE;

/// Of the C library's `mremap`: the old mapping stays, empty.
const DONTUNMAP: libc::c_int = 4;

/// Moves the page tables of a shared mapping to another, which is replaced. The first one stays, without tables.
///
/// # Safety
/// Both are of the same file at the same offset, and of this length. Nobody relies on who is mapped where meanwhile.
unsafe fn move_tables(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONTUNMAP;
    let (from, to) =
        (std::ptr::without_provenance_mut::<c_void>(from), std::ptr::without_provenance_mut::<c_void>(to));
    // Not by the C library's function, which may be the program's.
    // SAFETY: as the caller says.
    match unsafe { libc::syscall(libc::SYS_mremap, from, len, len, flags, to) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

impl Region {
    /// Everything in use becomes private: the file keeps what it was. Gives whether that took moving tables only.
    pub(super) fn make_private(&self, state: &mut State) -> Result<bool, Errno> {
        let used = self.used().next_multiple_of(CHUNK).min(self.pages);
        let mut moved = true;
        if state.private.is_empty() {
            moved &= self.make_part_private(0..used)?;
            state.private = 0..used;
            return Ok(moved);
        }
        // What was not folded yet stays as it is.
        moved &= state.private.start == 0;
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
        // SAFETY: two mappings of the region's file. Who accesses it now finds it as it is, until the next step.
        let moved = unsafe { move_tables(at, aside, len) };
        if moved.is_ok() {
            // SAFETY: the same content as before in the place of the region's own mapping.
            let ahead = unsafe { move_tables(self.ahead + part.start * PAGE, at, len) };
            if ahead.is_ok() {
                self.prepared.remove(part.start / CHUNK..part.end.div_ceil(CHUNK));
                return Ok(true);
            }
        } else {
            // What is moved to is unmapped first, whether it comes to moving or not.
            // SAFETY: no snapshot reads it: one in this process begins when all is shared, and then fails.
            unsafe { share(self, aside, len, (part.start * PAGE) as u64) }?;
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let place = std::ptr::without_provenance_mut(at);
        // Without tables.
        // SAFETY: the same content as before in the place of the region's own mapping. When the tables could not be moved,
        // this takes them down.
        match unsafe { mmap(place, len, access, flags, &self.file, (part.start * PAGE) as u64) } {
            Ok(_) => Ok(moved.is_ok()),
            Err(error) => {
                if moved.is_ok() {
                    // SAFETY: as above, the other way; if it fails pages are mapped again as they are used.
                    let _ = unsafe { move_tables(aside, at, len) };
                }
                Err(error)
            }
        }
    }

    /// A part becomes shared again, whose content the file has.
    pub(super) fn make_shared(&self, part: Range<usize>) -> Result<(), Errno> {
        let (at, aside, len) = (self.address(part.start), self.aside + part.start * PAGE, part.len() * PAGE);
        // SAFETY: the same content in the place of the region's own mapping.
        if unsafe { move_tables(aside, at, len) }.is_ok() {
            return Ok(());
        }
        // SAFETY: as above, with new tables. No child is forked meanwhile: the state is locked.
        unsafe { share(self, at, len, (part.start * PAGE) as u64) }
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
            move_tables(self.base, self.aside, PAGE)?;
            move_tables(self.aside, self.base, PAGE)
        }
    }
}

/// Maps a part of the file shared.
///
/// # Safety
/// It replaces a mapping of the region's that nobody relies on.
unsafe fn share(region: &Region, at: usize, len: usize, offset: u64) -> Result<(), Errno> {
    let place = std::ptr::without_provenance_mut(at);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as the caller says.
    unsafe { mmap(place, len, access, flags | MapFlags::SHARED, &region.file, offset) }?;
    region.advise(at, len).inspect_err(|_| {
        // Children must never share it.
        // SAFETY: the same content in its place.
        let _ = unsafe { mmap(place, len, access, flags | MapFlags::PRIVATE, &region.file, offset) };
    })
}
