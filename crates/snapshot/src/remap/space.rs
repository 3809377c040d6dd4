//! Which pages are in use, for owners that use parts of a region as they need them.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::region::{Region, State};
use crate::PAGE;

impl Region {
    /// Pages are in use from now on. They are zero if they never were before, or were released.
    pub fn claim(&self, pages: Range<usize>) {
        // A snapshot that begins has all that is in use.
        let _state = self.lock();
        self.claimed.insert(pages.clone());
        self.used.fetch_max(pages.end, Ordering::AcqRel);
    }

    /// Claims so many pages at the lowest free place that is aligned to `align` pages.
    pub fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
        let _space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = self.claimed.gap(self.used(), self.pages, count, align)?;
        self.claim(pages.clone());
        Some(pages)
    }

    /// Claims these pages if they are all free.
    pub fn claim_exactly(&self, pages: Range<usize>) -> bool {
        let _space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pages.end <= self.pages && self.claimed.first(pages.clone(), true).is_none();
        if free {
            self.claim(pages);
        }
        free
    }

    /// Pages are not in use any more, and their memory goes back to the kernel. Snapshots keep what they see of them.
    pub fn release(&self, pages: Range<usize>) {
        let mut state = self.lock();
        self.give_back(&mut state, pages.clone());
        self.claimed.remove(pages);
    }

    /// Pages become zero, and their memory goes back to the kernel. Snapshots keep what they see of them.
    pub fn discard(&self, pages: Range<usize>) {
        self.give_back(&mut self.lock(), pages);
    }

    fn give_back(&self, state: &mut State, pages: Range<usize>) {
        let private = pages.start.max(state.private.start)..pages.end.min(state.private.end);
        if private.is_empty() {
            self.punch(&self.file, pages);
            return;
        }
        self.punch(&self.file, pages.start..private.start);
        self.punch(&self.file, private.end..pages.end);
        // What never was in use the file has nothing of, and nobody has written to it.
        let private = private.start..private.end.min(self.used());
        if private.is_empty() {
            return;
        }
        self.gone.insert(private.clone());
        let at = std::ptr::without_provenance_mut(self.address(private.start));
        let (len, offset) = (private.len() * PAGE, (private.start * PAGE) as u64);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // In the place of the file there is one of nothing: of a file, so that what is written to it can be held up.
        // SAFETY: replaces memory that the owner gives back.
        let mapped =
            unsafe { mmap(at, len, ProtFlags::READ | ProtFlags::WRITE, flags, &self.nothing, offset) };
        match mapped {
            Ok(_) => state.has_nothing = true,
            // There can only be so many mappings.
            // SAFETY: memory of the region that the owner gives back; nobody else changes it.
            Err(_) => unsafe { at.cast::<u8>().write_bytes(0, len) },
        }
    }
}
