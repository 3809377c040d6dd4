//! Memory files of which snapshots are taken on a stock kernel, without KVM: what is common to the ways of doing it,
//! which are [`crate::uffd`] and [`crate::remap`].
//!
//! A [`Region`] is a file without a name that is mapped at one address: the owner's memory. It may be the owner's heap.
//! So its threads ([`Service`]) allocate nothing once they run and have all signals blocked, for signals' handlers are the
//! program's; and what is known of it is in mappings of its own (`mmap_box`).

mod above_standard;
mod accessible;
pub(crate) mod backing;
mod clock;
pub(crate) mod descriptor;
pub(crate) mod entries;
mod event_fd;
pub(crate) mod filter;
mod kernel;
mod mappings;
mod mmap_box;
pub(crate) mod protect;
mod service;
mod sets;
#[cfg(test)]
mod sets_tests;
mod signals;
mod words;

use std::ops::Range;

pub(crate) use accessible::{Accessible, NONE, keep_from_dumps};
pub(crate) use clock::now;
pub use descriptor::userfaultfd_of_engines;
pub(crate) use descriptor::{Descriptor, Purpose, Refusal};
pub(crate) use entries::Entries;
pub(crate) use event_fd::EventFd;
pub use kernel::counts_promises;
pub(crate) use mappings::Mappings;
pub use mappings::has_mapped_ring;
pub(crate) use mmap_box::{MmapBox, Table};
pub use service::Service;
pub(crate) use service::{Thread, Threaded};
pub(crate) use sets::Pages;
pub(crate) use signals::BlockedSignals;

use crate::engine::Statistics;
use crate::{Error, Kind};

/// How a region is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its size in bytes, a multiple of the page's.
    pub bytes: usize,
    /// Its address, if it matters; nothing may be mapped there.
    pub base: Option<usize>,
    /// Whether the kernel may back it with huge pages, which are protected and moved faster: on a file system of its own if
    /// that is allowed (CAP_SYS_ADMIN), else where `shmem_enabled` lets memory files have them. They are copied page by page
    /// all the same.
    pub huge_pages: bool,
    /// Whether all of it is in use from the beginning. Otherwise pages are claimed.
    pub claimed: bool,
    /// Whether it keeps track of which pages changed between snapshots.
    pub track_changes: bool,
}

/// A snapshot that the owner's process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    pub(crate) slot: usize,
    /// Its number: later ones have greater ones.
    pub epoch: u32,
    /// How often the numbers were used up before, and began anew.
    pub(crate) era: u32,
    /// Where the owner's process sees it.
    pub base: usize,
    /// Pages that it has: no page from this one on was ever in use at the snapshot.
    pub pages: usize,
    /// How long it held up writers, in nanoseconds.
    pub pause_ns: u64,
}

/// What its owner does with memory of which snapshots are taken, whichever way that is done. Any thread may call all of
/// it. Nothing but [`new`](Self::new) and errors allocates.
pub trait Region: service::Threaded + Send + Sync + 'static {
    /// What it has become for a `fork`.
    type Frozen<'a>: Frozen;

    /// Which engine's it is.
    const KIND: Kind;

    /// How many snapshots there can be at once that the owner's process sees, and how many in children.
    const AT_ONCE: usize;
    /// See [`AT_ONCE`](Self::AT_ONCE); `usize::MAX` if memory is what limits it.
    const CHILDREN_AT_ONCE: usize;

    /// Whether snapshots in the owner's process are mappings of their own, which whoever reads them may write to.
    const VIEWS_ARE_WRITABLE: bool;

    /// Whether it can keep track of changes.
    const TRACKS_CHANGES: bool;

    /// Maps it. Snapshots need the threads of a [`Service`], unless [`is_served`](Self::is_served) says otherwise.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where it does not work; [`Error::System`].
    fn new(options: Options) -> Result<MmapBox<Self>, Error>;

    /// Where it begins.
    fn base(&self) -> usize;

    /// Its size in pages.
    fn pages(&self) -> usize;

    /// Claims so many pages at the lowest free place that is aligned to `align` pages. They are zero.
    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>>;

    /// Claims these pages if they are all free.
    fn claim_exactly(&self, pages: Range<usize>) -> bool;

    /// Pages become zero and are in use, whether they were before or not. No other thread can claim them meanwhile. Gives
    /// whether that worked.
    fn replace(&self, pages: Range<usize>) -> bool;

    /// Pages are not in use any more, and their memory goes back to the kernel. Snapshots keep what they see of them.
    fn release(&self, pages: Range<usize>);

    /// Pages become zero, and their memory goes back to the kernel. Snapshots keep what they see of them.
    fn discard(&self, pages: Range<usize>);

    /// No page moves from now on, because devices may write to the frames of pages: the process is about to begin direct
    /// reads, or to set up a ring of io_uring. Snapshots take longer where pages would have moved.
    ///
    /// # Errors
    /// [`Error::System`]: what devices write may be lost.
    fn keep_in_place(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Takes a snapshot that this process sees at another address.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::System`].
    fn snapshot(&self) -> Result<SnapshotId, Error>;

    /// Ends a snapshot of this process's, and says whether it was whole: whether all its pages could be kept.
    ///
    /// # Safety
    /// Nobody reads it any more.
    unsafe fn end(&self, id: SnapshotId) -> bool;

    /// Whether a snapshot of this process's that has not ended has kept all its pages so far.
    fn is_whole(&self, id: &SnapshotId) -> bool;

    /// Of pages that were in use at the earlier snapshot with the number `since`, of the same era, the first run that was
    /// written until a later snapshot, which has not ended. If no track is kept, all pages are in one.
    fn first_changed(&self, _: &SnapshotId, _: u32, pages: Range<usize>) -> Option<Range<usize>> {
        (!pages.is_empty()).then_some(pages)
    }

    /// Takes a snapshot for the child of a `fork` that is the next thing this thread does.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::System`]: all is as before.
    fn freeze(&self) -> Result<Self::Frozen<'_>, Error>;

    /// Whether there can be one more snapshot in a child now.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether snapshots can be taken yet. Children that are forked before call [`share_in_child`](Self::share_in_child).
    fn is_served(&self) -> bool {
        true
    }

    /// In a child that was forked when the region was not served: maps it, all of it the child's own.
    ///
    /// # Errors
    /// [`Error::System`]; [`Error::OfASnapshot`] where regions are always served.
    ///
    /// # Safety
    /// The child has one thread, which has not touched the region.
    unsafe fn share_in_child(&self) -> Result<(), Error> {
        Err(Error::OfASnapshot)
    }

    /// In a snapshot's process, before it forks: makes every page its own, where nobody would keep pages for its child.
    fn own_everything(&self) {}

    /// Does all that can be done ahead of the next snapshot.
    fn settle(&self);

    /// What has happened so far.
    fn statistics(&self) -> Statistics;

    /// Keeps the statistics on a page from now on, where other processes can read them
    /// ([`processes`](crate::statistics::processes)), with the reason why the engine is this one. Numbers on the page are at
    /// most about a second old. Without memory or descriptors for a page there is none.
    fn publish_statistics(&self, why: &str);

    /// Counts a snapshot that could not be taken.
    fn count_failure(&self);
}

/// A region of which a child is about to be forked. Whoever holds it must not write to the region, claim or give back
/// anything of it.
pub trait Frozen {
    /// In the parent, when there is no child.
    fn cancel(self);

    /// In the parent: all goes on. Gives the snapshot's number.
    fn thaw(self) -> u32;

    /// In the child, before anything touches the region.
    ///
    /// # Errors
    /// [`Error::System`]: the region is not there.
    ///
    /// # Safety
    /// This is the child of a `fork` that followed [`Region::freeze`] immediately, and has one thread.
    unsafe fn map_in_child(self) -> Result<(), Error>;
}

/// The trait's methods that are the same for all regions, which have their parts by the same names.
macro_rules! common_methods {
    () => {
        type Frozen<'a> = Frozen<'a>;

        fn base(&self) -> usize {
            self.base
        }

        fn pages(&self) -> usize {
            self.pages
        }

        fn claim_anywhere(&self, count: usize, align: usize) -> Option<std::ops::Range<usize>> {
            let _search = self.space.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let pages = self.claimed.gap(self.used(), self.pages, count, align)?;
            self.accessible.extend(self.base, self.pages, pages.end).ok()?;
            self.claim(pages.clone());
            Some(pages)
        }

        fn claim_exactly(&self, pages: std::ops::Range<usize>) -> bool {
            let _search = self.space.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let free = pages.end <= self.pages
                && self.claimed.first(pages.clone(), true).is_none()
                && self.accessible.extend(self.base, self.pages, pages.end).is_ok();
            if free {
                self.claim(pages);
            }
            free
        }

        fn replace(&self, pages: std::ops::Range<usize>) -> bool {
            let _search = self.space.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if pages.end > self.pages || self.accessible.extend(self.base, self.pages, pages.end).is_err() {
                return false;
            }
            self.discard(pages.clone());
            let mut at = pages.start;
            while let Some(free) = self.claimed.run(at..pages.end, false) {
                at = free.end;
                self.claim(free);
            }
            true
        }

        fn release(&self, pages: std::ops::Range<usize>) {
            self.release(pages);
        }

        fn discard(&self, pages: std::ops::Range<usize>) {
            self.discard(pages);
        }

        fn freeze(&self) -> Result<Frozen<'_>, crate::Error> {
            Frozen::new(self)
        }

        fn publish_statistics(&self, why: &str) {
            if let Ok(page) = crate::statistics::page::Page::new(Some(Self::KIND), why) {
                let _ = self.published.set(page);
            }
        }

        fn count_failure(&self) {
            self.counters.failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    };
}
pub(crate) use common_methods;
