//! Memory into which devices write.
//!
//! A direct read (`O_DIRECT`) or a ring of io_uring *pins* pages: the device writes to their frames, whenever its data
//! comes. The kernel keeps a pinned page of private memory with the process that pinned it, and `fork` copies it for the
//! child at once. Moving page tables aside and merging would leave the frame to the snapshot, and the data would be lost.
//!
//! So the region becomes private for good before the program can pin anything. `fork` copies its page tables from then on.
//! The file gives its pages up, because the owner has copies of them: each page in use is copied once, as if the owner had
//! written to it, and is then removed from the file. The part of the region that is not in use yet becomes anonymous memory,
//! which has no file behind it: what is given back there needs no page of zeros in its place.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, madvise, mmap_anonymous, mprotect};

use super::CHUNK;
use super::merge_back::Merged;
use super::region::{Region, State};
use crate::region::{NONE, backing, keep_from_dumps};
use crate::{Error, PAGE};

/// Most pages that the file gives up in one step. Whoever claims pages waits for the end of the step.
const STEP: usize = CHUNK;

impl Region {
    pub(super) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Pins all pages of the region.
    pub(super) fn pin_all(&self) -> Result<(), Error> {
        if self.is_pinned() {
            return Ok(());
        }
        {
            // Nothing becomes accessible meanwhile.
            let _search = self.space.lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = self.lock();
            if self.is_pinned() {
                return Ok(());
            }
            self.make_private(&mut state).map_err(Error::system("making the region private"))?;
            self.make_rest_anonymous(state.private.end)
                .map_err(Error::system("making the rest of the region private"))?;
            state.anonymous = state.private.end;
            state.private = 0..self.pages;
            self.pinned.store(true, Ordering::Release);
        }
        // While children live, and when there is no memory now, the region's thread does the rest later.
        while self.give_up_some(&mut self.lock()) == Ok(Merged::Some) {
            self.give_way();
        }
        Ok(())
    }

    /// Replaces pages from one on, none of which is in use. They get their rights again when they are used.
    fn make_rest_anonymous(&self, start: usize) -> Result<(), Errno> {
        if start == self.pages {
            return Ok(());
        }
        let (at, len) = (self.address(start), (self.pages - start) * PAGE);
        let place = std::ptr::without_provenance_mut(at);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // Also when this fails, these pages become accessible again before they are used.
        self.accessible.take_back(start);
        // One mapping, so that it is replaced as a whole or not at all. Linux before 6.12 may unmap the old one when this
        // fails: then no more pages can become accessible, and allocators get memory outside of the region.
        // SAFETY: the region's own mapping, of which nobody uses these pages.
        unsafe { mmap_anonymous(place, len, NONE, flags) }?;
        keep_from_dumps(at, len);
        Ok(())
    }

    /// In a child: all of the region can be accessed, as in other children.
    pub(super) fn make_rest_accessible(&self) -> Result<(), Errno> {
        let rest = self.accessible.end().min(self.pages)..self.pages;
        if rest.is_empty() {
            return Ok(());
        }
        let at = std::ptr::without_provenance_mut(self.address(rest.start));
        // SAFETY: the region's mapping, of which nobody uses these pages.
        unsafe { mprotect(at, rest.len() * PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Has the file give up some of its pages, of which the owner gets copies.
    pub(super) fn give_up_some(&self, state: &mut State) -> Result<Merged, Errno> {
        if state.has_snapshots() {
            return Ok(Merged::Waits);
        }
        // Each page is tried once: the kernel keeps a page of the file, filled with zeros, if it cannot split a huge one.
        let Some(part) = backing::next_data(&self.file, state.given_up..self.pages)? else {
            state.given_up = 0;
            return Ok(Merged::All);
        };
        let part = part.start..part.end.min(part.start + STEP);
        let mut at = part.start;
        while let Some(used) = self.claimed.run(at..part.end, true) {
            self.copy_pages(used.clone())?;
            at = used.end;
        }
        state.given_up = part.end;
        backing::punch(&self.file, part);
        Ok(Merged::Some)
    }

    /// The owner gets copies of pages in use, but for those that it has given back, which are zero.
    fn copy_pages(&self, used: Range<usize>) -> Result<(), Errno> {
        let mut at = used.start;
        while let Some(kept) = self.gone.run(at..used.end, false) {
            let (place, len) = (self.address(kept.start), kept.len() * PAGE);
            // SAFETY: faults pages of the region in as if written to; their content stays.
            unsafe { madvise(std::ptr::without_provenance_mut(place), len, Advice::LinuxPopulateWrite) }?;
            at = kept.end;
        }
        Ok(())
    }
}
