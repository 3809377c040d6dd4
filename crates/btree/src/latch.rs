//! What a page is to whoever descends: something that can be read, held or not.

use bedplate_bufpool::{Exclusive, Optimistic, PageId, Restart, Shared};

use crate::error::{Result, damaged};
use crate::node::view::Page;

/// A page that can be read, and of which one learns whether what was read counts.
pub(crate) trait Readable {
    /// Its payload.
    fn view(&self) -> Page<'_>;
    /// Whether what was read counts.
    fn validate(&self) -> std::result::Result<(), Restart>;
}

impl Readable for Optimistic<'_> {
    #[inline(always)]
    fn view(&self) -> Page<'_> {
        // SAFETY: the pool maps every page's payload, behind a header of 24 bytes, as long as it lives.
        unsafe { Page::new(self.as_ptr()) }
    }

    #[inline(always)]
    fn validate(&self) -> std::result::Result<(), Restart> {
        Optimistic::validate(self)
    }
}

impl Readable for Shared<'_> {
    fn view(&self) -> Page<'_> {
        Page::of(self)
    }

    fn validate(&self) -> std::result::Result<(), Restart> {
        Ok(())
    }
}

impl Readable for Exclusive<'_> {
    fn view(&self) -> Page<'_> {
        Page::of(self)
    }

    fn validate(&self) -> std::result::Result<(), Restart> {
        Ok(())
    }
}

/// A page that is to be waited for, unless that is one that the caller holds himself, as only a damaged node can tell him.
pub(crate) fn not_held(page: PageId, held: &impl Latch) -> Result<PageId> {
    if page == held.number() { Err(damaged(page, "is in a circle")) } else { Ok(page) }
}

/// A page that is held.
pub(crate) trait Latch: Readable {
    /// Its number.
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
