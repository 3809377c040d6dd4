//! What a user's recovery does after a crash, when storage has pages of different moments.
//!
//! The log is replayed: every record names a page, which is pinned ([`Pool::pin_for_redo`]), compared by its log sequence
//! number, and changed if it is older. Which pages are free is known again when the user says which ones can be reached
//! ([`Pool::reclaim`]).

use crate::error::{Error, Result};
use crate::guard::Exclusive;
use crate::meta::FIRST;
use crate::page::PageId;
use crate::pool::Pool;

/// What [`Pool::pin_for_redo`] found in storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redo {
    /// The page as it was written last, or as it was changed since the pool was opened.
    Intact,
    /// Part of a page. It was replaced by zeros with a log sequence number of 0, so the log has to have all of it.
    Torn,
}

impl Pool {
    /// Holds a page exclusively that the log tells of, whether or not storage knows of it: a page that was never written is
    /// of zeros, with a log sequence number of 0.
    pub fn pin_for_redo(&self, page: PageId) -> Result<(Exclusive<'_>, Redo)> {
        self.space.allocate_at(page, &self.home)?;
        match self.pin_exclusive(page) {
            Ok(exclusive) => Ok((exclusive, Redo::Intact)),
            Err(Error::Damaged { .. }) => {
                let mut exclusive = self.take_over(page)?;
                exclusive.clear();
                Ok((exclusive, Redo::Torn))
            }
            Err(error) => Err(error),
        }
    }

    /// Frees every page that is not in use, and returns how many that were. Nobody allocates or frees meanwhile.
    pub fn reclaim(&self, mut in_use: impl FnMut(PageId) -> bool) -> u64 {
        let end = self.space.end();
        let lost: Vec<u64> = (FIRST..end).filter(|page| !in_use(PageId(*page))).collect();
        let mut state = self.space.lock();
        let before = state.free.len();
        state.free.extend(lost);
        (state.free.len() - before) as u64
    }
}
