//! How the states of pages change, but for the way of a fault (`serve`): claiming and giving back, arming ahead and at a
//! snapshot. The model checker runs this file and that one (`model`).

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::CHUNK;
use super::region::Region;
use super::snapshots::{Slot, Snapshots};
use super::target::Target;
use crate::Error;

/// Protecting a page that is protected costs as much as protecting one that is not; a call costs about as much as this
/// many, or this many of large folios.
pub(super) const GAP: usize = 10;
pub(super) const LARGE_GAP: usize = 40;
/// Pages to arm from which several threads do it: waking them takes as long as arming about so many. They only do if
/// enough pages are for long runs: each step flushes the translations of the other threads' processors, which takes
/// several times as long as protecting a few pages.
const TEAM_FROM: usize = 4096;
const TEAM_PART: usize = 8;
/// Chunks that a sweep looks at, at most.
const SWEPT: usize = 256;
/// Pages that a thread arms before it takes more of the work.
const TEAM_SHARE: usize = 16 * CHUNK;

impl Region {
    /// The pages of a range by chunks.
    pub(super) fn by_chunks(pages: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut start = pages.start;
        std::iter::from_fn(move || {
            let end = pages.end.min((start / CHUNK + 1) * CHUNK);
            let chunk = start..end;
            start = end;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// Pages are in use from now on. They are zero if they never were before, or were released.
    pub fn claim(&self, pages: Range<usize>) {
        let _open = self.gate.read();
        for chunk in Self::by_chunks(pages.clone()) {
            let _latch = self.latch(chunk.start);
            let claimed = self.claimed.insert(chunk.clone());
            self.counters.claimed.fetch_add(claimed as u64, Ordering::Relaxed);
            // Released pages are not armed. So these are not; and they are new to the count.
            let new = self.unarmed.insert(chunk.clone());
            self.unarmed_count.fetch_add(new, Ordering::Relaxed);
            chunk.for_each(|page| self.heat.mapped(page));
        }
        self.used.fetch_max(pages.end, Ordering::AcqRel);
    }

    /// Pages are not in use any more, and their memory goes back to the kernel. Snapshots keep what they see of them.
    pub fn release(&self, pages: Range<usize>) {
        // A snapshot sees them in use, or free: none begins in between.
        let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.give_back(&open, pages.clone());
        for chunk in Self::by_chunks(pages) {
            let _latch = self.latch(chunk.start);
            let released = self.claimed.remove(chunk.clone());
            self.counters.claimed.fetch_sub(released as u64, Ordering::Relaxed);
            let gone = self.unarmed.remove(chunk);
            self.unarmed_count.fetch_sub(gone, Ordering::Relaxed);
        }
    }

    /// Pages become zero, and their memory goes back to the kernel. Snapshots keep what they see of them.
    pub fn discard(&self, pages: Range<usize>) {
        let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.give_back(&open, pages);
    }

    fn give_back(&self, open: &Snapshots, pages: Range<usize>) {
        if pages.is_empty() {
            return;
        }
        for chunk in Self::by_chunks(pages.clone()) {
            let _latch = self.latch(chunk.start);
            let mut at = chunk.start;
            while let Some(run) = self.claimed.run(at..chunk.end, true) {
                at = run.end;
                self.expose(open, run);
            }
        }
        // Still under the gate: a snapshot between the two would see the zeros.
        self.empty(pages);
    }

    /// A snapshot begins, that shares all pages with the owner: all are armed.
    pub(super) fn add(&self, snapshots: &mut Snapshots, target: Target) -> Result<(usize, u32), Error> {
        let (slot, epoch) = self.begin(snapshots)?;
        snapshots.slots[slot] = Some(Slot { epoch, target });
        Ok((slot, epoch))
    }

    /// Arms everything and gives the new snapshot's slot and epoch.
    pub(super) fn begin(&self, snapshots: &mut Snapshots) -> Result<(usize, u32), Error> {
        let slot = snapshots.free()?;
        if snapshots.epoch == u32::MAX {
            if snapshots.active().next().is_some() {
                return Err(Error::TooManySnapshots { limit: u32::MAX as usize });
            }
            self.epochs.iter().for_each(|epoch| epoch.store(0, Ordering::Relaxed));
            snapshots.epoch = 0;
            snapshots.era = snapshots.era.wrapping_add(1);
        }
        self.arm_all().map_err(Error::system("write-protecting the region"))?;
        snapshots.epoch += 1;
        self.density.begin();
        self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
        Ok((slot, snapshots.epoch))
    }

    /// Arms all pages; the gate is closed.
    fn arm_all(&self) -> Result<(), Errno> {
        let unarmed = self.unarmed_count.load(Ordering::Acquire);
        let used = self.used();
        if unarmed < TEAM_FROM.max(used / TEAM_PART) {
            self.arm(0..used)?;
        } else {
            self.team.run(used.div_ceil(TEAM_SHARE), |share| self.arm_share(share))?;
        }
        self.counters.armed_at_snapshots.fetch_add(unarmed as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn arm_share(&self, share: usize) -> Result<(), Errno> {
        self.arm(share * TEAM_SHARE..self.used().min((share + 1) * TEAM_SHARE))
    }

    /// Arms the pages of a range that are not; nobody else changes their states meanwhile.
    fn arm(&self, pages: Range<usize>) -> Result<(), Errno> {
        let mut at = pages.start;
        while let Some(run) = self.unarmed.run_with_gaps(at..pages.end, self.gap()) {
            at = run.end;
            self.arm_run(run)?;
        }
        Ok(())
    }

    fn arm_run(&self, run: Range<usize>) -> Result<usize, Errno> {
        self.protect(run.clone())?;
        let new = self.unarmed.remove(run.clone());
        self.unarmed_count.fetch_sub(new, Ordering::Relaxed);
        self.took_apart(&run);
        run.for_each(|page| self.heat.armed(page));
        Ok(new)
    }

    /// Arms what is due, from a page on, until it was all, or as much as may be: then it gives the page to go on from.
    pub(super) fn arm_ahead(&self, from: usize) -> Option<usize> {
        let used = self.used();
        let to = used.min(from + SWEPT * CHUNK);
        let is_due = |page| self.heat.is_due(page);
        self.arm_those(from..to, self.heat.allowance(), is_due).or((to < used).then_some(to))
    }

    /// Arms all that is not hot.
    pub fn settle(&self) {
        self.arm_those(0..self.used(), usize::MAX, |page| self.heat.is_due(page) || !self.heat.is_hot(page));
    }

    /// Arms some of the pages, chunk by chunk, and gives the page at which it had armed enough.
    fn arm_those(&self, pages: Range<usize>, enough: usize, which: impl Fn(usize) -> bool) -> Option<usize> {
        let mut armed = 0;
        let mut at = pages.start;
        while armed < enough
            && let Some(page) = self.unarmed.first(at..pages.end, true)
        {
            let chunk = page..pages.end.min((page / CHUNK + 1) * CHUNK);
            let _open = self.gate.read();
            let _latch = self.latch(page);
            armed += self.arm_in(chunk.clone(), enough - armed, &which);
            // There may be more in this one if it was enough.
            at = if armed < enough { chunk.end } else { page };
        }
        self.counters.armed_ahead.fetch_add(armed as u64, Ordering::Relaxed);
        (armed >= enough).then_some(at)
    }

    fn arm_in(&self, chunk: Range<usize>, enough: usize, which: impl Fn(usize) -> bool) -> usize {
        let mut armed = 0;
        let mut at = chunk.start;
        while let Some(run) = self.unarmed.run(at..chunk.end, true) {
            at = run.end;
            let mut page = run.start;
            while page < run.end {
                if armed == enough {
                    return armed;
                }
                let most = run.end.min(page.saturating_add(enough - armed));
                let end = (page..most).find(|&page| !which(page)).unwrap_or(most);
                if end > page {
                    // What cannot be armed ahead is armed at the snapshot, or is its error.
                    armed += self.arm_run(page..end).unwrap_or(0);
                }
                page = if end == most { end } else { end + 1 };
            }
        }
        armed
    }
}
