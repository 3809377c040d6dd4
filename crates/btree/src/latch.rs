//! Pages as a descent sees them: readable, and held or not.

use bedplate_bufpool::{Exclusive, Optimistic, PageId, Restart, Shared};

use crate::error::{Result, damaged};
use crate::node::view::Page;

/// A page that can be read, with a later check whether the read was consistent.
pub(crate) trait Readable {
    /// The payload of the page.
    fn view(&self) -> Page<'_>;
    /// Checks that everything read so far is consistent. Fails if the page has changed since the guard was made.
    fn validate(&self) -> std::result::Result<(), Restart>;
}

impl Readable for Optimistic<'_> {
    #[inline(always)]
    fn view(&self) -> Page<'_> {
        Page::of(self.payload())
    }

    #[inline(always)]
    fn validate(&self) -> std::result::Result<(), Restart> {
        Optimistic::validate(self)
    }
}

impl Readable for Shared<'_> {
    #[inline(always)]
    fn view(&self) -> Page<'_> {
        Page::of(self.payload())
    }

    fn validate(&self) -> std::result::Result<(), Restart> {
        Ok(())
    }
}

impl Readable for Exclusive<'_> {
    #[inline(always)]
    fn view(&self) -> Page<'_> {
        Page::of(self.payload())
    }

    fn validate(&self) -> std::result::Result<(), Restart> {
        Ok(())
    }
}

/// Returns `page`, which the caller is about to wait for. Fails if the caller holds that page itself: this would be a
/// deadlock, and only a damaged node can cause it.
pub(crate) fn not_held(page: PageId, held: &impl Latch) -> Result<PageId> {
    if page == held.number() { Err(damaged(page, "is in a circle")) } else { Ok(page) }
}

/// A page that is held.
pub(crate) trait Latch: Readable {
    /// The page number.
    fn number(&self) -> PageId;
}

impl Latch for Shared<'_> {
    fn number(&self) -> PageId {
        self.page()
    }
}

impl Latch for Exclusive<'_> {
    fn number(&self) -> PageId {
        self.page()
    }
}
