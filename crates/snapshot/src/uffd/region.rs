//! The owner's memory, and the states of its pages.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::changes::Changes;
use super::child::Frozen;
use super::snapshots::Snapshots;
use super::states::{GAP, LARGE_GAP};
use super::target::{Target, ViewTarget};
use super::{CHUNK, SNAPSHOTS};
use crate::engine::{Arena, Engine, Options, SnapshotId};
use crate::region::{
    Accessible, Descriptor, Entries, EventFd, MmapArray, MmapBox, NONE, Pages, Purpose, Refusal, backing,
    exclude_from_dumps, now, protect, region_as_arena, region_as_engine,
};
use crate::statistics::page::Page;
use crate::statistics::{PauseCounters, Statistics};
use crate::{Error, Kind, PAGE};

const LATCHES: usize = 256;

#[derive(Default)]
pub(super) struct Counters {
    pub snapshots: AtomicU64,
    pub failed: AtomicU64,
    pub incomplete: AtomicU64,
    pub faults: AtomicU64,
    pub copied: AtomicU64,
    pub armed_at_snapshots: AtomicU64,
    /// Number of pages.
    pub claimed: AtomicU64,
    pub pauses: PauseCounters,
}

/// A region. See the [module](super) for its locks and invariants.
pub struct Region {
    pub(super) base: usize,
    pub(super) pages: usize,
    pub(super) memory: OwnedFd,
    pub(super) descriptor: Descriptor,
    /// The limit of armed pages between unarmed ones that are armed in one step.
    pub(super) gap: usize,
    /// For verifying the protection of pages, if the kernel's result is not reliable for huge pages.
    entries: Option<Entries>,
    pub(super) gate: RwLock<Snapshots>,
    latches: [Mutex<()>; LATCHES],
    accessible: Accessible,
    pub(super) claimed: Pages,
    pub(super) unarmed: Pages,
    pub(super) unarmed_count: AtomicUsize,
    /// For each page, the newest epoch for which the page was copied.
    pub(super) epochs: MmapArray<AtomicU32>,
    /// The tracking of changes, if it is enabled.
    pub(super) changes: Option<Changes>,
    /// No page from this one on was ever claimed.
    pub(super) used: AtomicUsize,
    /// Pages without content; see `target`.
    pub(super) nothing: usize,
    /// Wakes the thread that checks whether children have ended.
    pub(super) wake_up: EventFd,
    /// Wakes the handler when it must end.
    pub(super) end_handler: EventFd,
    pub(super) counters: Counters,
    /// The page on which other processes can read the statistics. Only the thread that ends children's snapshots
    /// writes to it.
    pub(super) published: OnceLock<Page>,
    /// Guards the search for free pages.
    pub(super) space: Mutex<()>,
    /// Whether the region's threads run.
    pub(super) served: AtomicBool,
    /// Whether the region's threads must end.
    pub(super) over: AtomicBool,
}

/// Size in bytes of the mapping without content.
const NOTHING: usize = super::target::MOST * PAGE;

impl Region {
    fn around(
        base: usize,
        options: Options,
        (memory, large_folios): (OwnedFd, bool),
        descriptor: Descriptor,
    ) -> Result<MmapBox<Self>, Error> {
        let pages = options.reserve / PAGE;
        let tables = Error::system("mapping the region's tables");
        let entries = (options.huge_pages && protect::needs_a_look()).then(Entries::open).transpose();
        let entries = entries.map_err(|error| {
            Refusal::Other("it takes /proc: opening /proc/self/pagemap", error).of(Kind::Uffd)
        })?;
        let make = || {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let nothing = unsafe {
                mmap_anonymous(std::ptr::null_mut(), NOTHING, ProtFlags::empty(), MapFlags::PRIVATE)
            }?;
            MmapBox::new(Self {
                base,
                pages,
                memory,
                descriptor,
                gap: if large_folios { LARGE_GAP } else { GAP },
                entries,
                gate: RwLock::new(Snapshots::default()),
                latches: [const { Mutex::new(()) }; LATCHES],
                accessible: Accessible::default(),
                claimed: Pages::new(pages, true)?,
                unarmed: Pages::new(pages, false)?,
                unarmed_count: AtomicUsize::new(0),
                epochs: MmapArray::new(pages, false)?,
                changes: options.track_changes.then(|| Changes::new(SNAPSHOTS, pages)).transpose()?,
                used: AtomicUsize::new(0),
                nothing: nothing as usize,
                wake_up: EventFd::new()?,
                end_handler: EventFd::new()?,
                counters: Counters::default(),
                published: OnceLock::new(),
                space: Mutex::new(()),
                served: AtomicBool::new(false),
                over: AtomicBool::new(false),
            })
        };
        make().map_err(tables)
    }

    fn set_up(&self, huge_pages: bool) -> Result<(), Error> {
        let (at, bytes) = (std::ptr::without_provenance_mut(self.base), self.pages * PAGE);
        if huge_pages {
            // SAFETY: the region's mapping; a kernel without huge pages for it refuses.
            let _ = unsafe { madvise(at, bytes, Advice::LinuxHugepage) };
        }
        // SAFETY: the region's mapping. Children must not share it: they map the file privately, or not at all.
        unsafe { madvise(at, bytes, Advice::LinuxDontFork) }
            .map_err(Error::system("keeping the region from children"))?;
        // SAFETY: nothing is protected before there are threads that serve faults.
        unsafe { self.descriptor.register(self.base, bytes) }.map_err(|error| match error {
            Errno::INVAL => Refusal::Kernel(Purpose::WriteProtection).of(Kind::Uffd),
            error => Error::System { what: "registering the region", source: error },
        })?;
        exclude_from_dumps(self.base, bytes);
        Ok(())
    }

    pub(super) fn address(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    /// Write-protects pages.
    pub(super) fn protect(&self, pages: Range<usize>) -> Result<(), Errno> {
        protect::protect(&self.descriptor, self.entries.as_ref(), self.base, pages)
    }

    /// The latch of the chunk that contains a page.
    pub(super) fn latch(&self, page: usize) -> MutexGuard<'_, ()> {
        let latch = &self.latches[page / CHUNK % LATCHES];
        latch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the first page that was never claimed.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Closes the gate, for a snapshot that begins or ends.
    pub(super) fn close(&self) -> RwLockWriteGuard<'_, Snapshots> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory of pages to the kernel, in this process and in snapshots that share them.
    pub(super) fn empty(&self, pages: Range<usize>) {
        backing::punch(&self.memory, pages);
    }

    /// Updates the published page.
    pub(super) fn publish(&self) {
        if let Some(page) = self.published.get() {
            page.publish(&Engine::statistics(self));
        }
    }

    /// Sets the epoch, as if this many snapshots had been taken.
    #[cfg(test)]
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.close().epoch = epoch;
    }
}

impl Region {
    /// Creates the region, with addresses for the reserve.
    pub(crate) fn new(options: Options) -> Result<MmapBox<Self>, Error> {
        let bytes = options.reserve;
        let descriptor =
            Descriptor::open(Purpose::WriteProtection).map_err(|refusal| refusal.of(Kind::Uffd))?;
        let (memory, large_folios) =
            backing::file(bytes, options.huge_pages).map_err(|error| backing::no_file(error, Kind::Uffd))?;
        let base = backing::map(&memory, bytes, NONE).map_err(Error::system("mapping the region"))?;
        // From here on the region owns the mapping, and unmaps it.
        let region = Self::around(base, options, (memory, large_folios), descriptor);
        let region = region.inspect_err(|_| {
            // SAFETY: the mapping made above.
            let _ = unsafe { munmap(std::ptr::without_provenance_mut(base), bytes) };
        })?;
        region.set_up(options.huge_pages)?;
        Ok(region)
    }
}

impl Engine for Region {
    region_as_engine!(Kind::Uffd);

    fn snapshot(&self) -> Result<SnapshotId, Error> {
        // The mapping is private from the start. It shares all pages with the owner of which it has no copy.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), self.pages * PAGE, protection, flags, &self.memory, 0)
        }
        .map_err(Error::system("mapping the snapshot"))?;
        // SAFETY: the mapping made above, which children do not need.
        let _ = unsafe { madvise(at, self.pages * PAGE, Advice::LinuxDontFork) };
        let base = at as usize;
        let begin = now();
        let added = {
            let mut snapshots = self.close();
            let added = self.add(&mut snapshots, Target::View(ViewTarget::new(base)));
            // No page is claimed while the gate is closed.
            added.map(|(slot, epoch)| (slot, epoch, snapshots.era, self.used()))
        };
        match added {
            Ok((slot, epoch, era, pages)) => {
                let pause_ns = now() - begin;
                self.counters.pauses.record(pause_ns);
                Ok(SnapshotId { slot, epoch, era, base, pages, pause_ns })
            }
            Err(error) => {
                // SAFETY: the mapping made above, which no other code knows.
                let _ = unsafe { munmap(at, self.pages * PAGE) };
                Err(error)
            }
        }
    }

    unsafe fn end(&self, id: SnapshotId) {
        self.close().slots[id.slot] = None;
        // SAFETY: the snapshot's mapping, which is not used any more. The target was the last to know it.
        let _ = unsafe { munmap(std::ptr::without_provenance_mut(id.base), self.pages * PAGE) };
    }

    fn is_whole(&self, id: &SnapshotId) -> bool {
        let snapshots = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        snapshots.slots[id.slot].as_ref().is_some_and(|slot| slot.epoch == id.epoch && slot.target.is_whole())
    }

    fn first_changed(&self, id: &SnapshotId, since: u32, pages: Range<usize>) -> Option<Range<usize>> {
        let Some(changes) = &self.changes else { return (!pages.is_empty()).then_some(pages) };
        let newest = |page: usize| changes.newest_before(id.slot, id.epoch, page, &self.epochs[page]);
        let start = pages.clone().find(|&page| newest(page) >= since)?;
        let end = (start..pages.end).find(|&page| newest(page) < since);
        Some(start..end.unwrap_or(pages.end))
    }

    fn settle(&self) {
        self.settle();
    }

    fn statistics(&self) -> Statistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let active = {
            let snapshots = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            snapshots.active().count() as u64
        };
        let mut statistics = Statistics {
            snapshots: get(&counters.snapshots),
            failed: get(&counters.failed),
            active,
            incomplete: get(&counters.incomplete),
            faults: get(&counters.faults),
            pages_copied: get(&counters.copied),
            pages_armed_at_snapshots: get(&counters.armed_at_snapshots),
            pages_unarmed: self.unarmed_count.load(Ordering::Relaxed) as u64,
            pages_claimed: get(&counters.claimed),
            ..Statistics::default()
        };
        counters.pauses.fill(&mut statistics);
        statistics
    }
}

impl Arena for Region {
    region_as_arena!();

    fn has_room(&self) -> bool {
        self.gate.read().unwrap_or_else(PoisonError::into_inner).free().is_ok()
    }

    fn is_served(&self) -> bool {
        self.served.load(Ordering::Acquire)
    }

    unsafe fn copy_in_child(&self) -> Result<(), Error> {
        // SAFETY: by the caller's promise.
        unsafe { self.map_privately() }?;
        self.make_own();
        Ok(())
    }

    fn own_everything(&self) {
        self.make_own();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region's own mappings, which no code uses any more.
        unsafe {
            let _ = munmap(std::ptr::without_provenance_mut(self.base), self.pages * PAGE);
            let _ = munmap(std::ptr::without_provenance_mut(self.nothing), NOTHING);
        }
    }
}
