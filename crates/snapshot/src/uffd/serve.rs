//! Serving a write fault: the page is copied for the snapshots that share it, and then the write continues.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::CHUNK;
use super::region::Region;
use super::snapshots::{Slot, Snapshots};
use crate::PAGE;

/// Number of pages that one fault exposes, if the same number of pages before it are exposed. A fault costs several
/// times as much as copying a page, and its writer is most likely writing sequentially. A random writer rarely
/// finds this many pages exposed.
pub(super) const WALK: usize = 16;

impl Region {
    /// Serves the waiting faults. Only the handler calls it, and the handler never writes to the region.
    pub(super) fn serve_faults(&self) {
        loop {
            // The gate is taken before the fault is read. Otherwise another thread could discard the page between
            // the two, which lets the writer continue, and a snapshot could begin. The page would then count as
            // written after the snapshot.
            let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let Some(address) = self.descriptor.read() else { return };
            self.serve(&open, (address - self.base) / PAGE);
        }
    }

    fn serve(&self, open: &Snapshots, page: usize) {
        let _latch = self.latch(page);
        self.counters.faults.fetch_add(1, Ordering::Relaxed);
        if self.unarmed.contains(page) {
            // Either the page was exposed since the thread faulted, or it was free when it was armed in a run with
            // others, and is claimed now.
            let _ = self.descriptor.unprotect(self.address(page), PAGE);
        } else {
            self.expose(open, self.served_with(page));
        }
    }

    /// The pages to serve with a fault on a page: claimed pages of its chunk, beginning with the page.
    fn served_with(&self, page: usize) -> Range<usize> {
        let start = page.saturating_sub(WALK);
        // With tracking of changes, every exposed page counts as changed.
        let walks = self.changes.is_none()
            && page - start == WALK
            && self.unarmed.first(start..page, false).is_none();
        let chunk_end = self.pages.min((page / CHUNK + 1) * CHUNK);
        let end = if walks { chunk_end.min(page + WALK) } else { page + 1 };
        page..self.claimed.first(page + 1..end, false).unwrap_or(end)
    }

    /// Copies pages for the snapshots that share them, and makes them writable. The pages must be in one chunk,
    /// whose latch must be held. Pages that are not armed are skipped.
    pub(super) fn expose(&self, open: &Snapshots, pages: Range<usize>) {
        let mut at = pages.start;
        while let Some(run) = self.unarmed.run(at..pages.end, false) {
            at = run.end;
            for (number, slot) in open.numbered() {
                self.copy_for(number, slot, run.clone());
            }
            for page in run.clone() {
                self.epochs[page].store(open.epoch, Ordering::Release);
            }
            let new = self.unarmed.insert(run.clone());
            self.unarmed_count.fetch_add(new, Ordering::Relaxed);
            // This cannot fail, because the range is registered. If it did, the writer would fault again.
            let _ = self.descriptor.unprotect(self.address(run.start), run.len() * PAGE);
        }
    }

    /// Gives a snapshot its own copies of the pages that it still shares.
    fn copy_for(&self, number: usize, slot: &Slot, run: Range<usize>) {
        let shares = |page: &usize| self.epochs[*page].load(Ordering::Relaxed) < slot.epoch;
        let mut page = run.start;
        while let Some(start) = (page..run.end).find(shares) {
            let end = (start..run.end).find(|page| !shares(page)).unwrap_or(run.end);
            let copied = slot.target.copy_pages(self, start..end);
            if copied.is_err() {
                self.counters.incomplete.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(changes) = &self.changes {
                let before = |page: usize| self.epochs[page].load(Ordering::Relaxed);
                (start..end).for_each(|page| changes.exposed(number, page, before(page)));
            }
            self.counters.copied.fetch_add((end - start) as u64, Ordering::Relaxed);
            page = end;
        }
    }
}
