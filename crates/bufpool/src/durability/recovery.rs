//! Functions for the user's recovery after a crash, when storage has pages from different moments.
//!
//! The user replays the log. Each record names a page. The user pins the page ([`Pool::pin_for_redo`]), compares its log sequence
//! number, and applies the record if the page is older. The pool knows the free pages again when the user says which pages are
//! reachable ([`Pool::reclaim`]).

use std::ops::Range;

use crate::access::guard::Exclusive;
use crate::durability::superblock::FIRST;
use crate::error::{Error, Result};
use crate::page::PageId;
use crate::pool::Pool;

/// The state in which [`Pool::pin_for_redo`] found a page in storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redo {
    /// The page as it was last written, or as it was changed since the pool was opened.
    Intact,
    /// Part of a page, or nothing of a page that was written. The pool replaced it by zeros with a log sequence number of 0, so
    /// the log must have the whole page.
    Torn,
}

impl Pool {
    /// Takes a page exclusively that a log record names, whether or not storage has it. A page that was never written has zeros
    /// and a log sequence number of 0.
    ///
    /// Replay may begin at any earlier sync. A page that was freed has a number that is at least that of every record
    /// about it until then, whatever the pool wrote over it. So redo skips these records, and the first record about the page's
    /// next use has the whole page ([`Log`](crate::Log), rule 4).
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

    /// The numbers of all pages, in use or free. The range grows at its end while other threads allocate.
    pub fn pages(&self) -> Range<u64> {
        FIRST..self.allocator.end()
    }

    /// The pages that are free now, in rising order.
    pub fn free_pages(&self) -> Vec<PageId> {
        self.allocator.lock().free.iter().copied().map(PageId).collect()
    }

    /// Frees every page that is not in use, and returns their number. No other thread may allocate or free meanwhile.
    pub fn reclaim(&self, mut in_use: impl FnMut(PageId) -> bool) -> u64 {
        let end = self.allocator.end();
        let lost: Vec<u64> = (FIRST..end).filter(|page| !in_use(PageId(*page))).collect();
        let mut state = self.allocator.lock();
        let before = state.free.len();
        state.free.extend(lost);
        (state.free.len() - before) as u64
    }
}
