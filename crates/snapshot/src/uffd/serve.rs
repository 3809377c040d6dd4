//! The way of a write fault: keep the page for the snapshots that share it, then let the write go on. The same for the
//! pages of which it is known that they are written at once: they are kept before there is a fault.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::CHUNK;
use super::descriptor::Fault;
use super::region::Region;
use super::snapshots::{Slot, Snapshots};
use super::window::Window;
use crate::PAGE;

/// Each how many snapshots it is looked whether hot pages still are.
const CHECKED: u32 = 8;

impl Region {
    /// Serves a fault, and says whether there are snapshots. Called by handlers only, which write to nothing in the
    /// region.
    pub(super) fn serve(&self, fault: Fault, window: &mut Window) -> bool {
        let page = (fault.address - self.base) / PAGE;
        let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let snapshots = open.active().next().is_some();
        let _latch = self.latch(page);
        self.counters.faults.fetch_add(1, Ordering::Relaxed);
        if self.unarmed.contains(page) {
            // Somebody's fault on the same page was first; this wakes whoever came after that.
            let _ = self.descriptor.unprotect(self.address(page), PAGE);
            return snapshots;
        }
        // Outside of snapshots only what is written is worth a later arming.
        self.heat.written(page);
        if !snapshots && self.changes.is_none() {
            // There is nothing to keep: more pages cost hardly more.
            self.expose(&open, page..page + 1);
            self.expose_claimed(&open, self.block(&open, page, CHUNK), |_| true);
            return false;
        }
        let chunk = page / CHUNK * CHUNK;
        let armed = self.armed_around(page, chunk..self.pages.min(chunk + CHUNK));
        // First what lets the writer go on.
        self.expose(&open, window.choose(page, armed));
        if self.changes.is_none() {
            let block = self.block(&open, page, self.density.most(self.used()));
            self.density.kept(self.expose_claimed(&open, block, |_| true));
        }
        snapshots
    }

    /// Keeps the pages for a snapshot that just began which were written at once after those before it: a page costs a
    /// fraction of its fault's time, which its writer would spend waiting.
    pub(super) fn keep_hot(&self) {
        const STEP: usize = CHUNK / 8;
        for start in (0..self.used()).step_by(STEP) {
            let pages = start..self.pages.min(start + STEP);
            if !pages.clone().any(|page| self.heat.is_hot(page)) {
                continue;
            }
            // Anew for each step, as writers wait for both.
            let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            if open.active().next().is_none() {
                return;
            }
            let _latch = self.latch(start);
            if open.epoch.is_multiple_of(CHECKED) {
                // Those that are still written at once have faults this time, if they have not had them already.
                let unproven = pages.filter(|&page| self.heat.is_hot(page) && !self.unarmed.contains(page));
                unproven.for_each(|page| self.heat.cooled(page));
            } else {
                self.expose_claimed(&open, pages, |page| self.heat.is_hot(page));
            }
        }
    }

    /// The pages to serve with one, of which the region may not have all.
    fn block(&self, open: &Snapshots, page: usize, most: usize) -> Range<usize> {
        let block = self.density.block(page, open.epoch, most);
        block.start..block.end.min(self.pages)
    }

    /// As [`Self::expose`], those of the pages that are in use and that `which` says, and gives how many.
    fn expose_claimed(&self, open: &Snapshots, pages: Range<usize>, which: impl Fn(usize) -> bool) -> usize {
        let (mut page, mut exposed) = (pages.start, 0);
        while let Some(first) = (page..pages.end).find(|page| which(*page)) {
            page = (first..pages.end).find(|page| !which(*page)).unwrap_or(pages.end);
            let mut at = first;
            while let Some(run) = self.claimed.run(at..page, true) {
                at = run.end;
                exposed += self.expose(open, run);
            }
        }
        exposed
    }

    /// The armed pages around one, within a chunk.
    fn armed_around(&self, page: usize, chunk: Range<usize>) -> Range<usize> {
        let is_armed = |page: &usize| !self.unarmed.contains(*page) && self.claimed.contains(*page);
        let end = self.unarmed.first(page..chunk.end, true).unwrap_or(chunk.end);
        let end = self.claimed.first(page..end, false).unwrap_or(end);
        let start = (chunk.start..page).rev().take_while(is_armed).last().unwrap_or(page);
        start..end.max(page + 1)
    }

    /// Keeps pages for the snapshots that share them, and makes them writable. They are in one chunk, whose latch is
    /// held; those that are not armed stay as they are. Gives how many were.
    pub(super) fn expose(&self, open: &Snapshots, pages: Range<usize>) -> usize {
        let (mut at, mut exposed) = (pages.start, 0);
        while let Some(run) = self.unarmed.run(at..pages.end, false) {
            at = run.end;
            for (number, slot) in open.numbered() {
                self.keep(number, slot, run.clone());
            }
            for page in run.clone() {
                self.epochs[page].store(open.epoch, Ordering::Release);
                self.heat.exposed(page);
            }
            let new = self.unarmed.insert(run.clone());
            self.unarmed_count.fetch_add(new, Ordering::Relaxed);
            exposed += new;
            // It cannot fail: the range is registered. If it did, the writer would fault again.
            let _ = self.descriptor.unprotect(self.address(run.start), run.len() * PAGE);
        }
        exposed
    }

    /// Gives a snapshot its own copy of the pages that it still shares.
    fn keep(&self, number: usize, slot: &Slot, run: Range<usize>) {
        let shares = |page: &usize| self.epochs[*page].load(Ordering::Relaxed) < slot.epoch;
        let mut page = run.start;
        while let Some(start) = (page..run.end).find(shares) {
            let end = (start..run.end).find(|page| !shares(page)).unwrap_or(run.end);
            let kept = slot.target.keep(self, start..end);
            if kept.is_err() {
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
