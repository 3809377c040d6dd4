//! Folding: the owner's copies go into the file, and its tables back to their place.
//!
//! A group of chunks is folded in these steps:
//! 1. It is registered with userfaultfd: whoever uses a page of it that has no entry in the tables waits.
//! 2. Its tables are moved to the *staging* mapping, which nobody else uses. From now on every user of the group waits.
//! 3. The copies among the staged pages are written into the file.
//! 4. The tables that were set aside come back, with the shared mapping, and whoever waits goes on.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::thread::nanosleep;
use rustix::time::Timespec;

use super::CHUNK;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::{BlockedSignals, backing};

/// Chunks that are folded in one step, at most, and copies of which there may be more only in a single chunk: users of
/// these chunks wait for as long as it takes.
pub(super) const CHUNKS: usize = 16;
const COPIES: usize = 512;

/// What a step of folding did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folded {
    /// Some chunks were folded, and there may be more.
    Some,
    /// All is shared.
    All,
    /// Snapshots have to end first.
    Waits,
}

impl Region {
    /// Folds some chunks. Signals are blocked meanwhile: a handler of theirs might use what is folded, and wait for this
    /// thread.
    ///
    /// # Errors
    /// There is no memory for what the file does not have yet. All stays as it is, and later it may go better.
    pub(super) fn fold_some(&self, _: &BlockedSignals) -> Result<Folded, Errno> {
        let mut state = self.lock();
        if state.private.is_empty() {
            return Ok(Folded::All);
        }
        if state.has_snapshots() {
            return Ok(Folded::Waits);
        }
        let group = self.next_group(&state)?;
        let (at, len) = (self.address(group.start), group.len() * PAGE);
        // SAFETY: whoever waits is woken at the end of this function.
        let folded = match unsafe { self.descriptor.hold_up(at, len) } {
            Ok(()) => self.fold(group.clone()),
            Err(error) => Err(error),
        };
        if folded.is_err() {
            let _ = self.descriptor.unregister(at, len);
        }
        let _ = self.descriptor.wake(at, len);
        self.counters.folded.fetch_add(folded? as u64, Ordering::Relaxed);
        state.private.start = group.end;
        if state.private.is_empty() {
            state.private = 0..0;
        }
        Ok(Folded::Some)
    }

    fn next_group(&self, state: &State) -> Result<Range<usize>, Errno> {
        let Range { start, end } = state.private;
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

    /// Gives how many pages the owner had copies of. Whoever uses the group waits.
    fn fold(&self, group: Range<usize>) -> Result<usize, Errno> {
        let (at, len) = (self.address(group.start), group.len() * PAGE);
        // SAFETY: nothing of the staging mapping is in use, and users of the group wait from now on.
        let (staged, folded) = match unsafe { self.move_tables(at, self.staging, len) } {
            Ok(()) => (len, self.fold_staged(&group)),
            Err(stopped) => (stopped.moved, Err(stopped.error)),
        };
        if folded.is_ok() {
            self.gone.remove(group);
        } else {
            self.bring_back(at, staged);
        }
        self.clear_staging();
        folded
    }

    fn fold_staged(&self, group: &Range<usize>) -> Result<usize, Errno> {
        let copies = self.write_copies(group)?;
        self.make_shared(group.clone())?;
        Ok(copies)
    }

    /// Moves staged pages back to their place. Nothing else has the owner's copies, so it is tried until there is memory
    /// for it.
    fn bring_back(&self, at: usize, len: usize) {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut done = 0;
        // SAFETY: the same pages as before, in the place of the group. Users of the group wait.
        while let Err(stopped) = unsafe { self.move_tables(self.staging + done, at + done, len - done) } {
            done += stopped.moved;
            let _ = nanosleep(&PAUSE);
        }
    }

    /// Writes what is in the staging mapping into the file, by the mapping in which tables were set aside.
    fn write_copies(&self, group: &Range<usize>) -> Result<usize, Errno> {
        let mut at = group.start;
        while let Some(run) = self.gone.run(at..group.end, true) {
            at = run.end;
            backing::punch(&self.file, run);
        }
        let mut copies = 0;
        self.entries.for_copies(self.staging, group.len(), |run| {
            copies += run.len();
            let mut next = group.start + run.start;
            let end = group.start + run.end;
            while next < end {
                let from = next;
                while next < end && self.is_to_be_written(next, group) {
                    next += 1;
                }
                self.write(from..next, group)?;
                // The file has a hole in the place of a page that is not to be written.
                while next < end && !self.is_to_be_written(next, group) {
                    next += 1;
                }
            }
            Ok(())
        })?;
        Ok(copies)
    }

    /// Whether a copy is of a page that is in use, and that is not zero because it was given back.
    fn is_to_be_written(&self, page: usize, group: &Range<usize>) -> bool {
        let is_zero = || self.staged(page..page + 1, group).iter().all(|&byte| byte == 0);
        self.claimed.contains(page) && !(self.gone.contains(page) && is_zero())
    }

    /// Staged pages.
    fn staged(&self, pages: Range<usize>, group: &Range<usize>) -> &[u8] {
        let at = self.staging + (pages.start - group.start) * PAGE;
        // SAFETY: a part of the staging mapping, to which nobody writes.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), pages.len() * PAGE) }
    }

    fn write(&self, pages: Range<usize>, group: &Range<usize>) -> Result<(), Errno> {
        if pages.is_empty() {
            return Ok(());
        }
        let (at, len) = (self.aside + pages.start * PAGE, pages.len() * PAGE);
        // Not by a system call that writes: files can only be as large as `ulimit -f` says.
        // SAFETY: faults pages in as if written. It fails where writing would end the process.
        unsafe { madvise(std::ptr::without_provenance_mut(at), len, Advice::LinuxPopulateWrite) }?;
        let from = self.staged(pages, group);
        // SAFETY: the shared mapping of these pages, which no snapshot reads any more, and which is apart from the other.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), std::ptr::with_exposed_provenance_mut(at), len);
        }
        Ok(())
    }

    /// Drops what is left in the staging mapping.
    fn clear_staging(&self) {
        let at = std::ptr::without_provenance_mut(self.staging);
        let len = CHUNKS * CHUNK * PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the region's own mapping, which nobody uses now.
        unsafe {
            if mmap_anonymous(at, len, ProtFlags::empty(), flags).is_err() {
                let _ = madvise(at, len, Advice::LinuxDontNeed);
            }
        }
    }
}
