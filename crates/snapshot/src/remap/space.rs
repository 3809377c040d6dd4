//! Which pages are in use, for owners that use parts of a region as they need them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bedplate_threads::BlockedSignals;
use rustix::io::Errno;

use super::detach_tables::drop_pages;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::backing;

impl Region {
    /// Pages are in use from now on, and accessible already. They are zero if they never were before, or were released.
    pub(super) fn claim(&self, pages: Range<usize>) {
        // A snapshot that begins has all that is in use.
        let state = self.lock();
        let new = self.claimed.insert(pages.clone());
        self.used.fetch_max(pages.end, Ordering::AcqRel);
        self.counters.claimed.fetch_add(new as u64, Ordering::Relaxed);
        self.publish(&state);
    }

    /// Pages are not in use any more, and their memory goes back to the kernel. Snapshots keep what they see of them.
    pub fn release(&self, pages: Range<usize>) {
        let mut state = self.lock();
        self.give_back(&mut state, pages.clone());
        let gone = self.claimed.remove(pages);
        self.counters.claimed.fetch_sub(gone as u64, Ordering::Relaxed);
        self.publish(&state);
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
        let anonymous = private.start.max(state.anonymous)..private.end;
        if !anonymous.is_empty() {
            self.make_anonymous_zero(anonymous.clone());
        }
        let private = private.start..private.end.min(state.anonymous);
        if private.is_empty() {
            return;
        }
        self.gone.insert(private.clone());
        // A handler of a signal that used these pages would wait for this thread.
        let _blocked = BlockedSignals::all();
        let (mut at, end) = (self.address(private.start), self.address(private.end));
        while at < end {
            let part = self.maps.end_of(at).unwrap_or(end).min(end) - at;
            if self.make_zero(at, part).is_err() {
                // There are as many mappings as there can be, or there is no memory for page tables.
                let pages = std::ptr::with_exposed_provenance_mut::<u8>(at);
                // SAFETY: memory of the region that the owner gives back; nobody else changes it.
                unsafe { pages.write_bytes(0, part) };
            }
            at += part;
        }
    }

    /// The kernel gives anonymous pages that were dropped back as zeros.
    fn make_anonymous_zero(&self, pages: Range<usize>) {
        let (at, len) = (self.address(pages.start), pages.len() * PAGE);
        // SAFETY: memory of the region that the owner gives back.
        if unsafe { drop_pages(at, len) }.is_err() {
            // SAFETY: as above; nobody else changes it.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(0, len) };
        }
    }

    /// Drops the owner's copies in a part of one mapping, and maps the kernel's page of zeros in the place of the file's
    /// pages. (A mapping of zeros in their place would be one more, and a process can only have so many.)
    fn make_zero(&self, at: usize, len: usize) -> Result<(), Errno> {
        // Whoever reads it at this moment must not find what the file has.
        // SAFETY: whoever waits is woken when it is not registered any more.
        let held_up = unsafe { self.descriptor.hold_up(at, len) };
        let zeroed = held_up
            // SAFETY: memory of the region that the owner gives back.
            .and_then(|()| unsafe { drop_pages(at, len) })
            .and_then(|()| self.descriptor.map_zeros(at, len));
        let unregistered = self.descriptor.unregister(at, len);
        zeroed.and(unregistered)
    }
}
