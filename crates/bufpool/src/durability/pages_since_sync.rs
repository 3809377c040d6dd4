//! The pages that were written and may not be durable yet, with the checksum of what was written.
//!
//! The kernel may drop data that it could not write, when an fsync fails or before. A page that left memory then has its old
//! content when it is read, and the next fsync succeeds all the same. So after a failed fsync, every page written since the last
//! success is in doubt (`doubtful`) until it has been written once more. That includes a page whose writing began before the
//! failed fsync ended: the kernel may have tried to store it, and the failed fsync has reported that error. The pool compares
//! each page that it reads with what was written last, as long as that may not be durable.
//!
//! Its lock is a leaf.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::images::Images;
use crate::page::{self, Image, PageId};

/// Maximum number of pages that are remembered. At that number, the pool makes them durable unasked.
const MOST: usize = 1 << 18;

type Sums = HashMap<u64, u32>;

#[derive(Default)]
pub(crate) struct PagesSinceSync {
    sums: Mutex<State>,
    /// Whether `sums` has any entry.
    any: AtomicBool,
    /// Whether an fsync has failed since [`PagesSinceSync::take_failure`] was called.
    failed: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Pages written since the last fsync began.
    written: Sums,
    /// Pages that the running fsync makes durable.
    covered: Sums,
    /// Pages that a failed fsync should have made durable.
    doubtful: Sums,
    /// Number of fsyncs that have failed.
    failures: u64,
}

impl State {
    fn last(&self, page: u64) -> Option<u32> {
        [&self.written, &self.covered, &self.doubtful].into_iter().find_map(|sums| sums.get(&page).copied())
    }
}

impl PagesSinceSync {
    fn state(&self) -> MutexGuard<'_, State> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of fsyncs that have failed, for [`PagesSinceSync::written`].
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Records that pages have been written, from number `first` on. `failures` is the number of failed fsyncs before the writing
    /// began. Returns true if there are so many that they should be made durable.
    pub fn written(&self, first: u64, images: Images<'_>, failures: u64) -> bool {
        let mut state = self.state();
        let failed = state.failures != failures;
        for (page, image) in (first..).zip(images.iter()) {
            let State { written, covered, doubtful, .. } = &mut *state;
            if failed {
                written.remove(&page);
                covered.remove(&page);
                doubtful.insert(page, page::sum(image));
            } else {
                doubtful.remove(&page);
                written.insert(page, page::sum(image));
            }
        }
        if failed {
            self.failed.store(true, Ordering::Release);
        }
        self.any.store(true, Ordering::Release);
        state.written.len() > MOST
    }

    /// Forgets a page whose content does not matter any more.
    pub fn forget(&self, page: u64) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state();
            let State { written, covered, doubtful, .. } = &mut *state;
            for sums in [written, covered, doubtful] {
                sums.remove(&page);
            }
        }
    }

    /// Records that an fsync begins. At most one runs at a time.
    pub fn begin(&self) {
        let mut state = self.state();
        state.covered = std::mem::take(&mut state.written);
    }

    /// Records that it has ended.
    pub fn end(&self, success: bool) {
        let mut state = self.state();
        let covered = std::mem::take(&mut state.covered);
        if !success {
            let written = std::mem::take(&mut state.written);
            state.doubtful.extend(covered);
            state.doubtful.extend(written);
            state.failures += 1;
            self.failed.store(true, Ordering::Release);
        }
        let any = !state.written.is_empty() || !state.doubtful.is_empty();
        self.any.store(any, Ordering::Release);
    }

    /// Whether a page that was read is the one that was written last. True if its last write is not recorded.
    pub fn is_last(&self, page: PageId, image: &Image) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return true;
        }
        self.state().last(page.0).is_none_or(|sum| sum == page::sum(image))
    }

    /// Whether an fsync has failed since the last call.
    pub fn take_failure(&self) -> bool {
        self.failed.load(Ordering::Relaxed) && self.failed.swap(false, Ordering::AcqRel)
    }

    /// Pages that must be written once more.
    pub fn doubtful(&self) -> Vec<PageId> {
        self.state().doubtful.keys().copied().map(PageId).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE;
    use crate::page_size::PageSize;

    #[test]
    fn every_page_written_before_a_failed_fsync_ended_is_in_doubt() {
        let pages_since_sync = PagesSinceSync::default();
        let images = [1, 2].map(|fill| {
            let mut image = [fill; PAGE];
            page::seal(&mut image, PageId(300));
            image
        });
        let written = |index: usize| Images::new(&images[index], PageSize::MIN);
        pages_since_sync.written(300, written(0), 0);
        pages_since_sync.written(301, written(0), 0);
        pages_since_sync.begin();
        pages_since_sync.written(300, written(1), 0);
        assert!(
            !pages_since_sync.is_last(PageId(300), &images[0])
                && pages_since_sync.is_last(PageId(301), &images[0])
        );
        pages_since_sync.end(false);
        let mut doubtful = pages_since_sync.doubtful();
        doubtful.sort();
        assert_eq!(doubtful, [PageId(300), PageId(301)]);
        // The writing of the first one began before the fsync failed, that of the second one afterwards.
        pages_since_sync.written(300, written(1), 0);
        assert_eq!(pages_since_sync.doubtful().len(), 2);
        pages_since_sync.written(300, written(1), 1);
        assert_eq!(pages_since_sync.doubtful(), [PageId(301)]);
        assert!(pages_since_sync.take_failure() && !pages_since_sync.take_failure());
        assert!(
            pages_since_sync.is_last(PageId(300), &images[1])
                && !pages_since_sync.is_last(PageId(301), &images[1])
        );
        // The next successful fsync does not cover them.
        pages_since_sync.begin();
        pages_since_sync.end(true);
        assert_eq!(pages_since_sync.doubtful(), [PageId(301)]);
        assert!(pages_since_sync.is_last(PageId(300), &images[0]));
        pages_since_sync.written(301, written(1), 1);
        pages_since_sync.begin();
        pages_since_sync.end(true);
        assert_eq!(pages_since_sync.doubtful(), []);
        assert!(pages_since_sync.is_last(PageId(301), &[0; PAGE]));
    }
}
