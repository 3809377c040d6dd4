//! Tracks which scans of the mapped memory may still look at a slab that was taken out of use.
//!
//! A scan registers for its duration. There are two counters, for the current epoch and for the one before. The
//! epoch advances only when no scan of the one before is left. A slab that is retired in one epoch is therefore
//! unused when the epoch has advanced twice: every scan that began before it was retired has ended.

use std::sync::atomic::{AtomicU64, Ordering};

/// The registered scans of a partition.
#[derive(Default)]
pub(crate) struct Readers {
    epoch: AtomicU64,
    active: [AtomicU64; 2],
}

/// A registered scan; dropping it ends the registration.
pub(crate) struct Reading<'a>(&'a AtomicU64);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Readers {
    fn counter(&self, epoch: u64) -> &AtomicU64 {
        &self.active[(epoch % 2) as usize]
    }

    /// Registers a scan.
    pub(crate) fn enter(&self) -> Reading<'_> {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let counter = self.counter(epoch);
            counter.fetch_add(1, Ordering::SeqCst);
            let reading = Reading(counter);
            // If the epoch has changed, the registration may have come too late for it.
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return reading;
            }
        }
    }

    /// The current epoch, for a slab that is being retired.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Advances the epoch as far as that helps, at most to `epoch` + 2. Returns whether every scan that may
    /// look at slabs retired in `epoch` has ended. One thread at a time calls this.
    pub(crate) fn passed(&self, epoch: u64) -> bool {
        for now in self.epoch()..epoch + 2 {
            if self.counter(now + 1).load(Ordering::SeqCst) != 0 {
                return false;
            }
            self.epoch.store(now + 1, Ordering::SeqCst);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_scan_looks_at_has_passed_at_once() {
        let readers = Readers::default();
        for _ in 0..5 {
            assert!(readers.passed(readers.epoch()));
        }
    }

    #[test]
    fn a_scan_holds_back_what_is_retired_during_it() {
        let readers = Readers::default();
        for _ in 0..3 {
            let reading = readers.enter();
            let epoch = readers.epoch();
            assert!(!readers.passed(epoch));
            assert!(!readers.passed(epoch));
            drop(reading);
            assert!(readers.passed(epoch));
        }
    }

    #[test]
    fn scans_that_overlap_do_not_hold_back_for_ever() {
        let readers = Readers::default();
        let mut reading = readers.enter();
        let epoch = readers.epoch();
        for scans in 0.. {
            if readers.passed(epoch) {
                break;
            }
            assert!(scans < 4);
            reading = readers.enter();
        }
        drop(reading);
    }
}
