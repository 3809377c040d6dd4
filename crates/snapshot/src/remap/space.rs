//! Which pages are in use, for owners that use parts of a region as they need them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::region::{Region, State};
use crate::PAGE;
use crate::region::backing;

impl Region {
    /// Pages are in use from now on, and accessible already. They are zero if they never were before, or were released.
    pub(super) fn claim(&self, pages: Range<usize>) {
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
        if self.make_zero(private.clone()).is_err() {
            // There are as many mappings as there can be, or there is no memory for page tables.
            let at = std::ptr::with_exposed_provenance_mut::<u8>(self.address(private.start));
            // SAFETY: memory of the region that the owner gives back; nobody else changes it.
            unsafe { at.write_bytes(0, private.len() * PAGE) };
        }
    }

    /// The owner's copies are dropped, and the kernel's page of zeros is mapped in the place of the file's pages. (Not another
    /// mapping in the place of the pages: a process can only have so many.)
    fn make_zero(&self, pages: Range<usize>) -> Result<(), Errno> {
        let (at, len) = (self.address(pages.start), pages.len() * PAGE);
        // Whoever reads it at this moment must not find what the file has.
        // SAFETY: whoever waits is woken when it is not registered any more.
        unsafe { self.descriptor.hold_up(at, len) }?;
        // SAFETY: memory of the region that the owner gives back.
        let dropped = unsafe { madvise(std::ptr::without_provenance_mut(at), len, Advice::LinuxDontNeed) };
        let zeroed = dropped.and_then(|()| self.descriptor.map_zeros(at, len));
        let registered = self.descriptor.unregister(at, len);
        zeroed.and(registered)
    }
}
