//! The regions that are tested alike.

use std::ops::Range;

use bedplate_snapshot::uffd::{Options, SnapshotId};
use bedplate_snapshot::{Error, remap, uffd};

/// A region about to be forked.
pub trait Frozen {
    fn thaw(self);
    /// # Safety
    /// In the child of the fork.
    unsafe fn map_in_child(self) -> Result<(), Error>;
}

/// A region with its threads.
pub trait Subject: Sync + Sized {
    /// Whether a snapshot in this process is a mapping of its own, that can be written to.
    const WRITABLE: bool;

    fn make(options: Options) -> Result<Self, Error>;
    fn base(&self) -> usize;
    fn claim_exactly(&self, pages: Range<usize>) -> bool;
    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>>;
    fn release(&self, pages: Range<usize>);
    fn discard(&self, pages: Range<usize>);
    fn snapshot(&self) -> Result<SnapshotId, Error>;
    /// Whether it was whole.
    ///
    /// # Safety
    /// Nobody reads it any more.
    unsafe fn end(&self, id: SnapshotId) -> bool;
    fn freeze(&self) -> Result<impl Frozen, Error>;
    fn settle(&self);
    fn torn(&self) -> u64;
}

macro_rules! subject {
    ($of:ident, writable: $writable:expr, whole: $whole:expr, torn: $torn:expr) => {
        impl Frozen for $of::Frozen<'_> {
            fn thaw(self) {
                self.thaw();
            }

            unsafe fn map_in_child(self) -> Result<(), Error> {
                // SAFETY: as the caller says.
                unsafe { self.map_in_child() }
            }
        }

        impl Subject for $of::Service {
            const WRITABLE: bool = $writable;

            fn make(options: Options) -> Result<Self, Error> {
                let service = Self::new($of::Region::new(options)?);
                service.start_threads()?;
                Ok(service)
            }

            fn base(&self) -> usize {
                (**self).base()
            }

            fn claim_exactly(&self, pages: Range<usize>) -> bool {
                (**self).claim_exactly(pages)
            }

            fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
                (**self).claim_anywhere(count, align)
            }

            fn release(&self, pages: Range<usize>) {
                (**self).release(pages);
            }

            fn discard(&self, pages: Range<usize>) {
                (**self).discard(pages);
            }

            fn snapshot(&self) -> Result<SnapshotId, Error> {
                (**self).snapshot()
            }

            unsafe fn end(&self, id: SnapshotId) -> bool {
                // SAFETY: as the caller says.
                $whole(unsafe { (**self).end(id) })
            }

            fn freeze(&self) -> Result<impl Frozen, Error> {
                (**self).freeze()
            }

            fn settle(&self) {
                (**self).settle();
            }

            fn torn(&self) -> u64 {
                $torn(self.statistics())
            }
        }
    };
}

subject!(uffd, writable: true, whole: |whole| whole, torn: |of: uffd::Statistics| of.torn);
subject!(remap, writable: false, whole: |()| true, torn: |_| 0);
