//! Folding: the owner's copies go into the file, and its tables back to their place.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::CHUNK;
use super::region::{Region, State};
use crate::PAGE;
use crate::region::{BlockedSignals, backing, protect};

/// Chunks that are folded in one step, at most, and copies of which there may be more only in a single chunk: writers to
/// these chunks wait for as long as it takes.
const CHUNKS: usize = 16;
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
    /// Folds some chunks. Signals are blocked meanwhile: a handler of theirs might write to what is protected, and wait for
    /// this thread.
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
        // SAFETY: who writes to it waits until the end of this function.
        let folded = unsafe { self.descriptor.register(at, len) }
            .and_then(|()| {
                let entries = self.needs_a_look.then_some(&self.entries);
                protect::protect(&self.descriptor, entries, self.base, group.clone())
            })
            .and_then(|()| self.fold(group.clone()));
        match folded {
            Ok(copies) => {
                state.private.start = group.end;
                self.counters.folded.fetch_add(copies as u64, Ordering::Relaxed);
            }
            Err(_) => {
                // Both lift the protection and wake who waits.
                let _ = self.descriptor.unprotect(at, len);
                let _ = self.descriptor.unregister(at, len);
            }
        }
        let _ = self.descriptor.wake(at, len);
        folded?;
        if state.private.is_empty() {
            state.private = 0..0;
            if std::mem::take(&mut state.holes) > 0 {
                backing::punch(&self.nothing, 0..self.pages);
            }
        }
        Ok(Folded::Some)
    }

    fn next_group(&self, state: &State) -> Result<Range<usize>, Errno> {
        let Range { start, end } = state.private;
        let (mut at, mut copies) = (start, 0);
        while at < end.min(start + CHUNKS * CHUNK) {
            let chunk = at..end.min((at / CHUNK + 1) * CHUNK);
            self.entries.for_copies(self.base, chunk.clone(), |run| {
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

    /// Gives how many pages were copied. Nobody writes to these.
    fn fold(&self, group: Range<usize>) -> Result<usize, Errno> {
        let mut at = group.start;
        while let Some(run) = self.gone.run(at..group.end, true) {
            at = run.end;
            backing::punch(&self.file, run.clone());
            // What was written there since is a copy.
            self.gone.remove(run);
        }
        let mut copies = 0;
        self.entries.for_copies(self.base, group.clone(), |run| {
            copies += run.len();
            let mut at = run.start;
            // Of what is not in use any more the file has holes.
            while let Some(used) = self.claimed.run(at..run.end, true) {
                at = used.end;
                self.write_to_file(used)?;
            }
            Ok(())
        })?;
        self.make_shared(group)?;
        Ok(copies)
    }

    fn write_to_file(&self, pages: Range<usize>) -> Result<(), Errno> {
        let (mut at, end) = (pages.start * PAGE, pages.end * PAGE);
        while at < end {
            // SAFETY: the region's memory, to which nobody writes now.
            let bytes = unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.base + at), end - at)
            };
            match rustix::io::pwrite(&self.file, bytes, at as u64) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(written) => at += written,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
