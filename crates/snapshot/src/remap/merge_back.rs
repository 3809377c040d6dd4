//! Merging: the owner's copies are written into the file, and the detached tables return to their place.
//!
//! A group of chunks is merged in these steps:
//! 1. The group is registered with userfaultfd. A thread that uses a page of it without a page-table entry waits.
//! 2. The group's tables are moved to a *staging* mapping, which no other thread knows. From now on every user of
//!    the group waits.
//! 3. The copies among the staged pages are written into the file.
//! 4. The detached tables come back with the shared mapping, and the waiting threads continue.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bedplate_threads::BlockedSignals;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, munmap};
use rustix::thread::nanosleep;
use rustix::time::Timespec;

use super::CHUNK;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::{backing, now};

/// Limit of chunks that are merged in one step. Threads that use these chunks wait for the end of the step.
const CHUNKS: usize = 16;
/// Limit of copies in one step. A step ends before the chunk that would exceed it.
const COPIES: usize = 512;

/// The result of a step of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// Some chunks were merged, and there may be more.
    Some,
    /// All chunks are shared.
    All,
    /// Snapshots must end first.
    Waits,
}

impl Region {
    /// Merges some chunks. Signals must be blocked, because a signal handler might use a chunk that is being
    /// merged, and wait for this thread.
    ///
    /// # Errors
    /// There is no memory for pages that the file does not have yet. Nothing has changed, and the caller may try
    /// again later.
    pub(super) fn merge_some(&self, _: &BlockedSignals) -> Result<Merged, Errno> {
        let mut state = self.lock();
        if state.private.is_empty() {
            return Ok(Merged::All);
        }
        if self.is_pinned() {
            return self.give_up_some(&mut state);
        }
        if state.has_snapshots() {
            return Ok(Merged::Waits);
        }
        self.publish(&state);
        let begin = *state.merge_begin.get_or_insert_with(now);
        let group = self.next_group(&state)?;
        let (at, len) = (self.address(group.start), group.len() * PAGE);
        // SAFETY: this function wakes the waiting threads at its end.
        let merged = match unsafe { self.descriptor.hold_up(at, len) } {
            Ok(()) => self.merge(group.clone()),
            Err(error) => Err(error),
        };
        if merged.is_err() {
            let _ = self.descriptor.unregister(at, len);
        }
        let _ = self.descriptor.wake(at, len);
        self.counters.merged.fetch_add(merged? as u64, Ordering::Relaxed);
        state.private.start = group.end;
        if state.private.is_empty() {
            state.private = 0..0;
            state.merge_begin = None;
            let ns = now() - begin;
            self.counters.merges.fetch_add(1, Ordering::Relaxed);
            self.counters.merges_ns.fetch_add(ns, Ordering::Relaxed);
            self.counters.latest_merge_ns.store(ns, Ordering::Relaxed);
        }
        self.publish(&state);
        Ok(Merged::Some)
    }

    /// The pages to merge next. They are a part of one mapping.
    fn next_group(&self, state: &State) -> Result<Range<usize>, Errno> {
        let Range { start, end } = state.private;
        let end = end.min((self.maps.end_of(self.address(start))? - self.base) / PAGE);
        let (mut at, mut copies) = (start, 0);
        while at < end.min(start + CHUNKS * CHUNK) {
            let chunk = at..end.min((at / CHUNK + 1) * CHUNK);
            self.entries.for_copies(self.address(chunk.start), chunk.len(), |run| {
                copies += run.len();
                Ok(())
            })?;
            if copies > COPIES && at > start {
                break;
            }
            at = chunk.end;
        }
        Ok(start..at)
    }

    /// Merges a group whose users wait. Returns the number of pages of which the owner had copies.
    fn merge(&self, group: Range<usize>) -> Result<usize, Errno> {
        let (at, len) = (self.address(group.start), group.len() * PAGE);
        // SAFETY: users of the group wait from now on.
        let staged = Staged { pages: group.clone(), at: unsafe { self.move_away(at, len) }? };
        let merged = self.merge_staged(&staged);
        if merged.is_ok() {
            self.gone.remove(group);
        } else {
            self.bring_back(&staged);
        }
        merged
    }

    fn merge_staged(&self, staged: &Staged) -> Result<usize, Errno> {
        let copies = self.write_copies(staged)?;
        self.make_shared(staged.pages.clone())?;
        Ok(copies)
    }

    /// Moves staged pages back to their place. There is no other place for the owner's copies, so this retries
    /// until there is memory for the move.
    fn bring_back(&self, staged: &Staged) {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let (at, len) = (self.address(staged.pages.start), staged.pages.len() * PAGE);
        // SAFETY: the same pages as before, at the group's address. Users of the group wait.
        while unsafe { self.move_tables(staged.at, at, len) }.is_err() {
            // The group may be unmapped now, but its users must still wait.
            // SAFETY: the group's pages are staged, so this replaces nothing in use. `merge_some` wakes the waiting
            // threads.
            let _ =
                unsafe { self.map_privately(&staged.pages).and_then(|()| self.descriptor.hold_up(at, len)) };
            let _ = nanosleep(&PAUSE);
        }
    }

    /// Writes the owner's copies into the file, through the mapping of the detached tables.
    fn write_copies(&self, staged: &Staged) -> Result<usize, Errno> {
        let group = &staged.pages;
        let mut at = group.start;
        while let Some(run) = self.gone.run(at..group.end, true) {
            at = run.end;
            backing::punch(&self.file, run);
        }
        let mut copies = 0;
        self.entries.for_copies(staged.at, group.len(), |run| {
            copies += run.len();
            let mut next = group.start + run.start;
            let end = group.start + run.end;
            while next < end {
                let from = next;
                while next < end && self.is_to_be_written(next, staged) {
                    next += 1;
                }
                self.write(from..next, staged)?;
                // The file has a hole for a page that must not be written.
                while next < end && !self.is_to_be_written(next, staged) {
                    next += 1;
                }
            }
            Ok(())
        })?;
        Ok(copies)
    }

    /// Whether the copy of a page must be written: the page is in use, and is not zero because it was released.
    fn is_to_be_written(&self, page: usize, staged: &Staged) -> bool {
        let is_zero = || staged.content(page..page + 1).iter().all(|&byte| byte == 0);
        self.claimed.contains(page) && !(self.gone.contains(page) && is_zero())
    }

    fn write(&self, pages: Range<usize>, staged: &Staged) -> Result<(), Errno> {
        if pages.is_empty() {
            return Ok(());
        }
        let (at, len) = (self.aside + pages.start * PAGE, pages.len() * PAGE);
        // A writing system call is not used, because `ulimit -f` limits the size of files.
        // SAFETY: faults pages in as if they were written. It fails where a write would end the process.
        unsafe { madvise(std::ptr::without_provenance_mut(at), len, Advice::LinuxPopulateWrite) }?;
        let from = staged.content(pages);
        // SAFETY: the shared mapping of these pages, which no snapshot reads any more. It does not overlap the
        // source.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), std::ptr::with_exposed_provenance_mut(at), len);
        }
        Ok(())
    }
}

/// The owner's pages that are being merged, in a mapping that no other thread knows. Dropping the value unmaps it.
struct Staged {
    pages: Range<usize>,
    /// The address of the first page.
    at: usize,
}

impl Staged {
    /// The content of some of the pages.
    fn content(&self, pages: Range<usize>) -> &[u8] {
        let at = self.at + (pages.start - self.pages.start) * PAGE;
        // SAFETY: a part of the mapping, to which no thread writes.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), pages.len() * PAGE) }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // SAFETY: no other thread knows the mapping.
        let _ = unsafe { munmap(std::ptr::without_provenance_mut(self.at), self.pages.len() * PAGE) };
    }
}
