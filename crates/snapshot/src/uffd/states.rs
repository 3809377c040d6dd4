//! Changes of pages' states, except for serving faults (`serve`): claiming, releasing, and arming. The model
//! checker runs both files (`model`).

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::CHUNK;
use super::region::Region;
use super::snapshots::{Slot, Snapshots};
use super::target::Target;
use crate::Error;

/// Limits of armed pages between unarmed ones that are armed in one call. Protecting a page costs the same whether
/// it is protected already or not. A call costs about as much as protecting this many pages, or this many pages of
/// large folios.
pub(super) const GAP: usize = 10;
pub(super) const LARGE_GAP: usize = 40;
impl Region {
    /// Splits a range of pages into its parts in each chunk.
    pub(super) fn by_chunks(pages: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut start = pages.start;
        std::iter::from_fn(move || {
            let end = pages.end.min((start / CHUNK + 1) * CHUNK);
            let chunk = start..end;
            start = end;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// Marks pages as in use. They are zero if they were never in use, or were released.
    pub fn claim(&self, pages: Range<usize>) {
        let _open = self.gate.read();
        for chunk in Self::by_chunks(pages.clone()) {
            let _latch = self.latch(chunk.start);
            let claimed = self.claimed.insert(chunk.clone());
            self.counters.claimed.fetch_add(claimed as u64, Ordering::Relaxed);
            // Released pages are not armed, so these pages are not. They are new in the count.
            let new = self.unarmed.insert(chunk);
            self.unarmed_count.fetch_add(new, Ordering::Relaxed);
        }
        self.used.fetch_max(pages.end, Ordering::AcqRel);
    }

    /// Releases pages, and returns their memory to the kernel. Snapshots keep their content.
    pub fn release(&self, pages: Range<usize>) {
        // No snapshot may begin in between: it must see the pages either in use or free.
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

    /// Makes pages zero, and returns their memory to the kernel. Snapshots keep their content.
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
        // This is still under the gate, because a snapshot that begins in between would see zeros.
        self.empty(pages);
    }

    /// Begins a snapshot that shares all pages with the owner. All pages are armed.
    pub(super) fn add(&self, snapshots: &mut Snapshots, target: Target) -> Result<(usize, u32), Error> {
        let (slot, epoch) = self.begin(snapshots)?;
        snapshots.slots[slot] = Some(Slot { epoch, target });
        Ok((slot, epoch))
    }

    /// Arms all pages, and returns the slot and the epoch of the new snapshot.
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
        self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
        Ok((slot, snapshots.epoch))
    }

    /// Arms all pages. The gate must be closed.
    fn arm_all(&self) -> Result<(), Errno> {
        let armed = self.arm(0..self.used())?;
        self.counters.armed_at_snapshots.fetch_add(armed as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Arms the unarmed pages of a range, and returns their number. No other thread may change their states
    /// meanwhile.
    fn arm(&self, pages: Range<usize>) -> Result<usize, Errno> {
        let (mut at, mut armed) = (pages.start, 0);
        while let Some(run) = self.unarmed.run_with_gaps(at..pages.end, self.gap) {
            at = run.end;
            self.protect(run.clone())?;
            let new = self.unarmed.remove(run);
            self.unarmed_count.fetch_sub(new, Ordering::Relaxed);
            armed += new;
        }
        Ok(armed)
    }

    /// Arms all pages, one chunk at a time. Writers continue meanwhile.
    pub fn settle(&self) {
        let mut at = 0;
        while let Some(page) = self.unarmed.first(at..self.used(), true) {
            at = (page / CHUNK + 1) * CHUNK;
            let _open = self.gate.read();
            let _latch = self.latch(page);
            // Pages that cannot be armed now are armed at the next snapshot, which reports the error.
            let _ = self.arm(page..self.used().min(at));
        }
    }
}
