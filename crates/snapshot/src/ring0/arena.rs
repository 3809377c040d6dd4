//! The [`Arena`] of programs that run in ring 0 and have their snapshots in forked children: [`Region`].
//!
//! It is a [`Space`] whose frames are shared with forked children, so `fork` copies no page tables of it. Parts of
//! it are claimed and released as the program's allocator requests. It exists as long as the process.
//!
//! No function that is called while the program forks allocates with the program's allocator, as long as this
//! library has its own allocator; see the preload library.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bedplate_ring0::InterruptsOff;
use bedplate_ring0::frames::Backing;
use bedplate_ring0::paging::PageSize;
use rustix::mm::{Advice, madvise};

use super::background::Background;
use super::control::ControlMapping;
use super::fault::Page;
use super::frames::{process, unavailable};
use super::reaper::Reaper;
use super::space::Space;
use super::{child, forked, protocol};
use crate::engine::{Arena, Engine, Frozen, Options, Threads};
use crate::region::Pages;
use crate::statistics::page::Page as StatisticsPage;
use crate::statistics::{PauseCounters, Statistics};
use crate::{Error, Kind, PAGE};

/// Number of pages that are released in one step: the pages of one table. Snapshots can be taken between the steps.
const STEP: usize = 512;

/// A region of a program that forks. See the module.
pub struct Region {
    pub(super) space: &'static Arc<Space>,
    pub(super) control: ControlMapping,
    pub(super) reaper: Reaper,
    _background: Background,
    claimed: Mutex<Pages>,
    /// No page from this one on was ever claimed.
    used: AtomicUsize,
    pub(super) pauses: PauseCounters,
    failed: AtomicU64,
    claimed_count: AtomicU64,
    /// The page on which other processes can read the statistics. Only the reaper writes to it.
    published: OnceLock<StatisticsPage>,
}

/// Statistics of children, in addition to those of every engine.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ChildStatistics {
    /// Forked children that ran in ring 0 with a snapshot.
    pub children: u64,
    /// Pages that the children used.
    pub pages_used: u64,
    /// Pages that the children dropped unchanged, to make room for others.
    pub pages_let_go: u64,
}

impl Region {
    /// Creates the region with `bytes` bytes of addresses, and starts its threads. Builds the process in ring 0 if
    /// there is none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without ring 0; [`Error::System`].
    pub fn new(bytes: usize) -> Result<&'static Self, Error> {
        let bytes = bytes.next_multiple_of(PageSize::Size2M.bytes() as usize);
        let options = Options::new(bytes);
        let space = Space::with(process()?, options, Backing::Shared)?;
        let background = Background::start(&space, options.copiers)?;
        let claimed = Pages::new(bytes / PAGE, true).map_err(Error::system("mapping the region's tables"))?;
        let region = Box::leak(Box::new(Self {
            space: Box::leak(Box::new(space)),
            control: ControlMapping::new()?,
            reaper: Reaper::new()?,
            _background: background,
            claimed: Mutex::new(claimed),
            used: AtomicUsize::new(0),
            pauses: PauseCounters::default(),
            failed: AtomicU64::new(0),
            claimed_count: AtomicU64::new(0),
            published: OnceLock::new(),
        }));
        Reaper::start(region)?;
        Ok(region)
    }

    /// Makes this thread enter ring 0.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn enter(&self) -> Result<(), Error> {
        self.space.process.enter().map(drop).map_err(unavailable)
    }

    fn claim(&self, claimed: &Pages, pages: Range<usize>) {
        self.used.fetch_max(pages.end, Ordering::Relaxed);
        let new = claimed.insert(pages);
        self.claimed_count.fetch_add(new as u64, Ordering::Relaxed);
    }

    fn discard_some(&self, pages: Range<usize>) -> Result<(), Error> {
        let space = &**self.space;
        let discarded = space.process.run(|cpu| {
            // SAFETY: in ring 0, and dropped there.
            let _off = unsafe { InterruptsOff::new() };
            let _reading = space.latch.read(|| cpu.relax());
            if space.epochs.active().next().is_some() {
                for page in pages.clone() {
                    let address = space.base() + (page * PAGE) as u64;
                    Page { space, cpu, address }.write_by_main();
                }
            }
            let at = space.home.address(pages.start * PAGE);
            // SAFETY: the contents of these frames are not needed any more; snapshots that shared them have copies.
            let removed = unsafe { madvise(at.cast(), pages.len() * PAGE, Advice::LinuxRemove) };
            cpu.relax();
            removed.map_err(Error::system("giving memory back"))
        });
        discarded.map_err(unavailable).flatten()
    }

    /// Statistics of children so far.
    pub fn children(&self) -> ChildStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ChildStatistics {
            children: read(&self.control.children),
            pages_used: read(&self.control.brought),
            pages_let_go: read(&self.control.dropped),
        }
    }

    /// Updates the published page.
    pub(super) fn publish(&'static self) {
        if let Some(page) = self.published.get() {
            page.publish(&self.statistics());
        }
    }
}

impl Threads for &'static Region {}

/// A region exists as long as the process. Forked children rely on that.
impl Engine for &'static Region {
    fn kind(&self) -> Kind {
        Kind::Ring0
    }

    fn base(&self) -> usize {
        self.space.base() as usize
    }

    fn pages(&self) -> usize {
        self.space.bytes() / PAGE
    }

    fn freeze(&self) -> Result<Frozen<'_>, Error> {
        forked::Frozen::new(self).map(Into::into)
    }

    fn statistics(&self) -> Statistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut statistics = self.space.statistics();
        statistics.failed = read(&self.failed);
        statistics.pages_claimed = read(&self.claimed_count);
        self.pauses.fill(&mut statistics);
        statistics
    }
}

impl Arena for &'static Region {
    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
        let claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = claimed.gap(self.used.load(Ordering::Relaxed), self.pages(), count, align)?;
        self.claim(&claimed, pages.clone());
        Some(pages)
    }

    fn claim_exactly(&self, pages: Range<usize>) -> bool {
        let claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pages.end <= self.pages() && claimed.first(pages.clone(), true).is_none();
        if free {
            self.claim(&claimed, pages);
        }
        free
    }

    fn replace(&self, pages: Range<usize>) -> bool {
        self.release(pages.clone());
        self.claim_exactly(pages)
    }

    fn release(&self, pages: Range<usize>) {
        self.discard(pages.clone());
        let gone = self.claimed.lock().unwrap_or_else(PoisonError::into_inner).remove(pages);
        self.claimed_count.fetch_sub(gone as u64, Ordering::Relaxed);
    }

    fn discard(&self, pages: Range<usize>) {
        if let Some(child) = child::current() {
            return child.empty(pages);
        }
        let mut start = pages.start;
        while start < pages.end {
            let end = pages.end.min((start / STEP + 1) * STEP);
            if self.discard_some(start..end).is_err() {
                // The thread is not in ring 0 and cannot enter, so it writes zeros as any program would.
                let at = (self.base() + start * PAGE) as *mut u8;
                // SAFETY: memory that its owner has released.
                unsafe { at.write_bytes(0, (end - start) * PAGE) };
            }
            start = end;
        }
    }

    unsafe fn discard_in_child(&self, pages: Range<usize>) {
        self.discard(pages);
    }

    fn has_room(&self) -> bool {
        self.space.epochs.active().count() < protocol::MOST
    }

    fn publish_statistics(&self, why: &str) {
        if let Ok(page) = StatisticsPage::new(Some(Kind::Ring0), why) {
            let _ = self.published.set(page);
        }
    }

    fn count_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}
