//! Which pages are in use, for owners that use parts of a region as they need them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::CHUNK;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::backing;

/// Parts that are given back while they are private, until all is folded, from which on small ones are only made zero.
const HOLES: usize = 8192;

impl Region {
    /// Pages are in use from now on. They are zero if they never were before, or were released.
    pub fn claim(&self, pages: Range<usize>) {
        // A snapshot that begins has all that is in use.
        let _state = self.lock();
        self.claimed.insert(pages.clone());
        self.used.fetch_max(pages.end, Ordering::AcqRel);
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
            backing::punch(&self.file, pages);
            return;
        }
        backing::punch(&self.file, pages.start..private.start);
        backing::punch(&self.file, private.end..pages.end);
        // What never was in use the file has nothing of, and nobody has written to it.
        let private = private.start..private.end.min(self.used());
        if private.is_empty() {
            return;
        }
        self.gone.insert(private.clone());
        let at = std::ptr::without_provenance_mut(self.address(private.start));
        let (len, offset) = (private.len() * PAGE, (private.start * PAGE) as u64);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // In the place of the file there is one of nothing: of a file, so that what is written to it can be held up. A
        // process can only have so many mappings, and it needs some for other things.
        let is_worth_it = state.holes < HOLES || private.len() >= CHUNK;
        // SAFETY: replaces memory that the owner gives back.
        if is_worth_it && unsafe { mmap(at, len, access, flags, &self.nothing, offset) }.is_ok() {
            state.holes += 1;
        } else {
            // SAFETY: memory of the region that the owner gives back; nobody else changes it.
            unsafe { at.cast::<u8>().write_bytes(0, len) };
        }
    }
}
