//! What a user's recovery does after a crash, when storage has pages of different moments.
//!
//! The log is replayed: every record names a page, which is pinned ([`Pool::pin_for_redo`]), compared by its log sequence
//! number, and changed if it is older. Which pages are free is known again when the user says which ones can be reached
//! ([`Pool::reclaim`]).

use std::ops::Range;

use crate::access::guard::Exclusive;
use crate::durability::superblock::FIRST;
use crate::error::{Error, Result};
use crate::page::PageId;
use crate::pool::Pool;

/// What [`Pool::pin_for_redo`] found in storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redo {
    /// The page as it was written last, or as it was changed since the pool was opened.
    Intact,
    /// Part of a page, or nothing of a page that was written. The pool replaced it by zeros with a log sequence number of
    /// 0, so the log has to have all of it.
    Torn,
}

impl Pool {
    /// Holds a page exclusively that the log tells of, whether or not storage knows of it: a page that was never written is
    /// of zeros, with a log sequence number of 0.
    ///
    /// Replay may begin at any earlier sync. A page that was freed has a number that is at least that of every record
    /// about it until then, whatever the pool wrote over it. So redo skips these records, and the first record about the
    /// page's next life has all of it ([`Log`](crate::Log), rule 4).
    pub fn pin_for_redo(&self, page: PageId) -> Result<(Exclusive<'_>, Redo)> {
        self.allocator.allocate_at(page, &self.store)?;
        match self.pin_exclusive(page) {
            Ok(exclusive) => {
                self.last_lsn.note(exclusive.lsn());
                Ok((exclusive, Redo::Intact))
            }
            Err(Error::Damaged { .. }) => {
                let mut exclusive = self.take_over(page)?;
                exclusive.clear(0);
                Ok((exclusive, Redo::Torn))
            }
            Err(error) => Err(error),
        }
    }

    /// The numbers of all pages, in use or free. The range grows at its end while others allocate.
    pub fn pages(&self) -> Range<u64> {
        FIRST..self.allocator.end()
    }

    /// The pages that are free now, in rising order.
    pub fn free_pages(&self) -> Vec<PageId> {
        self.allocator.lock().free.iter().copied().map(PageId).collect()
    }

    /// Frees every page that is not in use, and returns how many that were. Nobody allocates or frees meanwhile.
    pub fn reclaim(&self, mut in_use: impl FnMut(PageId) -> bool) -> u64 {
        let end = self.allocator.end();
        let lost: Vec<u64> = (FIRST..end).filter(|page| !in_use(PageId(*page))).collect();
        let mut state = self.allocator.lock();
        let before = state.free.len();
        state.free.extend(lost);
        (state.free.len() - before) as u64
    }
}
