//! Which pages were written and may not be durable yet, and what was written of each: its checksum.
//!
//! The kernel may forget what it could not write, when an fsync fails or before: a page that left memory then comes back as it
//! was before, and the next fsync succeeds all the same. So everything since the last success is in doubt after a failure
//! (`doubtful`) until it has been written once more. What is read is compared with what was written last, as long as
//! that may not be durable.
//!
//! Its lock is a leaf.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::page::{self, Image, PageId};

/// The most pages that are remembered before they are made durable unasked.
const MOST: usize = 1 << 18;

type Sums = HashMap<u64, u32>;

#[derive(Default)]
pub(crate) struct Unsynced {
    sums: Mutex<State>,
    /// Some of `sums` are there.
    any: AtomicBool,
    /// An fsync has failed since this was asked.
    failed: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Since an fsync began, or was successful.
    written: Sums,
    /// What the fsync that runs now is to make durable.
    covered: Sums,
    /// Of fsyncs that have failed.
    doubtful: Sums,
}

impl State {
    fn last(&self, page: u64) -> Option<u32> {
        [&self.written, &self.covered, &self.doubtful].into_iter().find_map(|sums| sums.get(&page).copied())
    }
}

impl Unsynced {
    fn state(&self) -> MutexGuard<'_, State> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages have been written, the first one of this number. True if there are so many that they should be made durable.
    pub fn written(&self, first: u64, images: &[Image]) -> bool {
        let mut state = self.state();
        for (page, image) in (first..).zip(images) {
            state.written.insert(page, page::sum(image));
            state.doubtful.remove(&page);
        }
        self.any.store(true, Ordering::Release);
        state.written.len() > MOST
    }

    /// A page's content is not worth remembering any more.
    pub fn forget(&self, page: u64) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state();
            let State { written, covered, doubtful } = &mut *state;
            for sums in [written, covered, doubtful] {
                sums.remove(&page);
            }
        }
    }

    /// An fsync begins. There is one at a time.
    pub fn begin(&self) {
        let mut state = self.state();
        state.covered = std::mem::take(&mut state.written);
    }

    /// It has ended.
    pub fn end(&self, success: bool) {
        let mut state = self.state();
        let mut covered = std::mem::take(&mut state.covered);
        if !success {
            // What was written since has another chance, and counts.
            covered.retain(|page, _| !state.written.contains_key(page));
            state.doubtful.extend(covered);
            self.failed.store(true, Ordering::Release);
        }
        let any = !state.written.is_empty() || !state.doubtful.is_empty();
        self.any.store(any, Ordering::Release);
    }

    /// Whether a page that was read is as it was written last, as far as that is remembered.
    pub fn is_last(&self, page: PageId, image: &Image) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return true;
        }
        self.state().last(page.0).is_none_or(|sum| sum == page::sum(image))
    }

    /// Whether an fsync has failed since this was asked.
    pub fn take_failure(&self) -> bool {
        self.failed.load(Ordering::Relaxed) && self.failed.swap(false, Ordering::AcqRel)
    }

    /// What has to be written once more.
    pub fn doubtful(&self) -> Vec<PageId> {
        self.state().doubtful.keys().copied().map(PageId).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE;

    #[test]
    fn what_was_written_after_a_failed_fsync_began_is_not_in_doubt() {
        let unsynced = Unsynced::default();
        let images = [1, 2].map(|fill| {
            let mut image = [fill; PAGE];
            page::seal(&mut image, PageId(300));
            image
        });
        unsynced.written(300, &images[..1]);
        unsynced.written(301, &images[..1]);
        unsynced.begin();
        unsynced.written(300, &images[1..]);
        assert!(!unsynced.is_last(PageId(300), &images[0]) && unsynced.is_last(PageId(301), &images[0]));
        unsynced.end(false);
        assert_eq!(unsynced.doubtful(), [PageId(301)]);
        assert!(unsynced.take_failure() && !unsynced.take_failure());
        assert!(unsynced.is_last(PageId(300), &images[1]) && !unsynced.is_last(PageId(301), &images[1]));
        // The next success is not theirs.
        unsynced.begin();
        unsynced.end(true);
        assert_eq!(unsynced.doubtful(), [PageId(301)]);
        assert!(unsynced.is_last(PageId(300), &images[0]));
        unsynced.written(301, &images[1..]);
        unsynced.begin();
        unsynced.end(true);
        assert_eq!(unsynced.doubtful(), []);
        assert!(unsynced.is_last(PageId(301), &[0; PAGE]));
    }
}
