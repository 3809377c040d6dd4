//! The pages in use, for owners that claim parts of a region as they need them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bedplate_threads::BlockedSignals;
use rustix::io::Errno;

use super::detach_tables::drop_pages;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::backing;

impl Region {
    /// Marks pages as in use. They must be accessible already. They are zero if they were never in use, or were
    /// released.
    pub(super) fn claim(&self, pages: Range<usize>) {
        // The lock makes a snapshot that begins include all pages in use.
        let state = self.lock();
        let new = self.claimed.insert(pages.clone());
        self.used.fetch_max(pages.end, Ordering::AcqRel);
        self.counters.claimed.fetch_add(new as u64, Ordering::Relaxed);
        self.publish(&state);
    }

    /// Releases pages, and returns their memory to the kernel. Snapshots keep their content.
    pub fn release(&self, pages: Range<usize>) {
        let mut state = self.lock();
        self.give_back(&mut state, pages.clone());
        let gone = self.claimed.remove(pages);
        self.counters.claimed.fetch_sub(gone as u64, Ordering::Relaxed);
        self.publish(&state);
    }

    /// Makes pages zero, and returns their memory to the kernel. Snapshots keep their content.
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
        // The file has no pages that were never in use, and no thread has written to them.
        let private = private.start..private.end.min(self.used());
        if private.is_empty() {
            return;
        }
        let anonymous = private.start.max(state.anonymous)..private.end;
        if !anonymous.is_empty() {
            self.make_anonymous_zero(anonymous.clone());
        }
        let private = private.start..private.end.min(state.anonymous);
        if private.is_empty() {
            return;
        }
        self.gone.insert(private.clone());
        // A signal handler that uses these pages would wait for this thread.
        let _blocked = BlockedSignals::all();
        let (mut at, end) = (self.address(private.start), self.address(private.end));
        while at < end {
            let part = self.maps.end_of(at).unwrap_or(end).min(end) - at;
            if self.make_zero(at, part).is_err() {
                // The limit of mappings is reached, or there is no memory for page tables.
                let pages = std::ptr::with_exposed_provenance_mut::<u8>(at);
                // SAFETY: memory of the region that the owner releases; no other thread changes it.
                unsafe { pages.write_bytes(0, part) };
            }
            at += part;
        }
    }

    /// Makes anonymous pages zero: the kernel replaces dropped pages by zeros.
    fn make_anonymous_zero(&self, pages: Range<usize>) {
        let (at, len) = (self.address(pages.start), pages.len() * PAGE);
        // SAFETY: memory of the region that the owner releases.
        if unsafe { drop_pages(at, len) }.is_err() {
            // SAFETY: as above; no other thread changes it.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(0, len) };
        }
    }

    /// Drops the owner's copies in a part of one mapping, and maps the kernel's zero page instead of the file's
    /// pages. A separate mapping of zeros is avoided, because the number of mappings of a process is limited.
    fn make_zero(&self, at: usize, len: usize) -> Result<(), Errno> {
        // A thread that reads the pages at this moment must not see the file's content.
        // SAFETY: waiting threads are woken when the range is unregistered.
        let held_up = unsafe { self.descriptor.hold_up(at, len) };
        let zeroed = held_up
            // SAFETY: memory of the region that the owner releases.
            .and_then(|()| unsafe { drop_pages(at, len) })
            .and_then(|()| self.descriptor.map_zeros(at, len));
        let unregistered = self.descriptor.unregister(at, len);
        zeroed.and(unregistered)
    }
}
