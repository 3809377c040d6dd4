//! The owner's memory, and its state.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use bedplate_threads::BlockedSignals;
use rustix::io::Errno;
use rustix::mm::munmap;
use rustix::thread::nanosleep;
use rustix::time::Timespec;

use super::TASKS;
use super::children::Children;
use super::freeze::Frozen;
use super::merge_back::Merged;
use crate::engine::{Arena, Engine, Options, SnapshotId};
use crate::region::{
    Accessible, Descriptor, Entries, EventFd, MmapBox, NONE, Pages, ProcMaps, Purpose, Refusal, backing,
    exclude_from_dumps, now, region_as_arena, region_as_engine,
};
use crate::statistics::page::Page;
use crate::statistics::{PauseCounters, Statistics};
use crate::{Error, Kind, PAGE};

/// The name of the operation that fails if there is no memory for the region's tables.
const TABLES: &str = "mapping the region's tables";

#[derive(Default)]
pub(super) struct Counters {
    pub snapshots: AtomicU64,
    pub failed: AtomicU64,
    pub instantaneous: AtomicU64,
    /// Number of pages of which the owner had copies when they were merged.
    pub merged: AtomicU64,
    pub merges: AtomicU64,
    pub merges_ns: AtomicU64,
    pub latest_merge_ns: AtomicU64,
    /// Number of pages.
    pub claimed: AtomicU64,
    pub pauses: PauseCounters,
}

/// The state that the lock guards.
pub(super) struct State {
    /// The number of the newest snapshot.
    pub epoch: u32,
    /// The pages that are mapped privately.
    pub private: Range<usize>,
    /// The pages whose tables were detached for a child and are not dropped yet.
    pub detached: Range<usize>,
    /// In a pinned region: pages of the file before this one have been tried.
    pub given_up: usize,
    /// In a pinned region: pages from this one on are anonymous.
    pub anonymous: usize,
    /// The time when merging began after the latest snapshot, in nanoseconds of the monotonic clock.
    pub merge_begin: Option<u64>,
    /// The number of the active snapshot of this process, if there is one.
    pub task: Option<u32>,
    pub children: Children,
}

impl State {
    fn new() -> Result<Self, Errno> {
        let children = Children::new()?;
        Ok(Self {
            epoch: 0,
            private: 0..0,
            detached: 0..0,
            given_up: 0,
            anonymous: usize::MAX,
            merge_begin: None,
            task: None,
            children,
        })
    }

    /// Whether any snapshot is active.
    pub fn has_snapshots(&mut self) -> bool {
        self.task.is_some() || self.children.living() > 0
    }
}

/// A region. See the [module](super) for its locks and invariants.
pub struct Region {
    pub(super) base: usize,
    /// The address of the file's second mapping, which keeps detached tables.
    pub(super) aside: usize,
    pub(super) pages: usize,
    pub(super) huge_pages: bool,
    pub(super) file: OwnedFd,
    pub(super) descriptor: Descriptor,
    pub(super) entries: Entries,
    /// Used only while the state's lock is held.
    pub(super) maps: ProcMaps,
    state: Mutex<State>,
    /// Number of threads that wait for the state's lock.
    waiting: AtomicUsize,
    pub(super) accessible: Accessible,
    pub(super) claimed: Pages,
    pub(super) gone: Pages,
    /// No page from this one on was ever claimed.
    pub(super) used: AtomicUsize,
    /// Guards the search for free pages.
    pub(super) space: Mutex<()>,
    pub(super) wake_up: EventFd,
    pub(super) counters: Counters,
    /// Whether the region stays private. It changes only while the state's lock is held.
    pub(super) pinned: AtomicBool,
    /// The page on which other processes can read the statistics. Only the thread that holds the state's lock
    /// writes to it.
    pub(super) published: OnceLock<Page>,
    /// Whether the region's thread must end.
    pub(super) over: AtomicBool,
}

impl Region {
    /// Maps the file. No page is accessible yet.
    fn map(&mut self) -> Result<(), Errno> {
        self.base = backing::map(&self.file, self.pages * PAGE, NONE)?;
        self.aside = backing::map(&self.file, self.pages * PAGE, NONE)?;
        Ok(())
    }

    fn set_up(&self) -> Result<(), Error> {
        let bytes = self.pages * PAGE;
        for at in [self.base, self.aside] {
            self.advise(at, bytes).map_err(Error::system("keeping the region from children"))?;
            exclude_from_dumps(at, bytes);
        }
        self.try_to_move().map_err(|error| Refusal::Other("moving page tables", error).of(Kind::Remap))
    }

    pub(super) fn address(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                state
            }
        }
    }

    /// Lets a waiting thread take the state's lock, which the caller has just released. Otherwise the caller would
    /// take it again before the other thread has woken up.
    pub(super) fn give_way(&self) {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
        if self.waiting.load(Ordering::Relaxed) > 0 {
            let _ = nanosleep(&PAUSE);
        }
    }

    /// The number of the first page that was never claimed.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Begins a snapshot.
    pub(super) fn begin(&self, state: &mut State) -> Result<(), Error> {
        let was_shared = state.private.is_empty();
        let moved = self.make_private(state).map_err(Error::system("making the region private"))?;
        state.epoch = state.epoch.wrapping_add(1);
        state.merge_begin = None;
        let (counters, instant) = (&self.counters, was_shared && moved);
        counters.snapshots.fetch_add(1, Ordering::Relaxed);
        counters.instantaneous.fetch_add(u64::from(instant), Ordering::Relaxed);
        Ok(())
    }

    fn statistics_with(&self, state: &State, children: u64) -> Statistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let mut statistics = Statistics {
            snapshots: get(&counters.snapshots),
            failed: get(&counters.failed),
            active: children + u64::from(state.task.is_some()),
            instantaneous: get(&counters.instantaneous),
            copied_as_usual: get(&counters.snapshots).saturating_sub(get(&counters.instantaneous)),
            pages_copied: get(&counters.merged),
            pages_private: state.private.len().min(self.used()) as u64,
            pages_claimed: get(&counters.claimed),
            merges: get(&counters.merges),
            merges_ns: get(&counters.merges_ns),
            latest_merge_ns: get(&counters.latest_merge_ns),
            ..Statistics::default()
        };
        counters.pauses.fill(&mut statistics);
        statistics
    }

    /// Updates the published page. An ended child still counts until the merging thread has noticed its end.
    pub(super) fn publish(&self, state: &State) {
        if let Some(page) = self.published.get() {
            page.publish(&self.statistics_with(state, state.children.forked()));
        }
    }
}

impl Region {
    /// Creates the region, with addresses for the reserve.
    pub(crate) fn new(options: Options) -> Result<MmapBox<Self>, Error> {
        let (bytes, pages) = (options.reserve, options.reserve / PAGE);
        let descriptor = Descriptor::open(Purpose::HoldingUp).map_err(|refusal| refusal.of(Kind::Remap))?;
        let (file, _) =
            backing::file(bytes, options.huge_pages).map_err(|error| backing::no_file(error, Kind::Remap))?;
        let entries = Entries::open().map_err(|error| {
            Refusal::Other("it takes /proc: opening /proc/self/pagemap", error).of(Kind::Remap)
        })?;
        let maps = ProcMaps::open().map_err(|error| {
            Refusal::Other("it takes /proc: opening /proc/self/maps", error).of(Kind::Remap)
        })?;
        let mut region = Self {
            base: 0,
            aside: 0,
            pages,
            huge_pages: options.huge_pages,
            file,
            descriptor,
            entries,
            maps,
            state: Mutex::new(State::new().map_err(Error::system("making files for children"))?),
            waiting: AtomicUsize::new(0),
            accessible: Accessible::default(),
            claimed: Pages::new(pages, true).map_err(Error::system(TABLES))?,
            gone: Pages::new(pages, false).map_err(Error::system(TABLES))?,
            used: AtomicUsize::new(0),
            space: Mutex::new(()),
            wake_up: EventFd::new().map_err(Error::system(TABLES))?,
            counters: Counters::default(),
            pinned: AtomicBool::new(false),
            published: OnceLock::new(),
            over: AtomicBool::new(false),
        };
        region.map().map_err(Error::system("mapping the region"))?;
        region.set_up()?;
        MmapBox::new(region).map_err(Error::system(TABLES))
    }
}

impl Engine for Region {
    region_as_engine!(Kind::Remap);

    /// Only one snapshot can be active. The previous one must have ended, and is merged first.
    fn snapshot(&self) -> Result<SnapshotId, Error> {
        loop {
            let mut state = self.lock();
            if self.is_pinned() {
                let reason = "devices may write into the memory".to_owned();
                return Err(Error::Unavailable { engine: Kind::Remap, reason });
            }
            if state.has_snapshots() {
                return Err(Error::TooManySnapshots { limit: TASKS });
            }
            if !state.private.is_empty() {
                drop(state);
                self.merge_some(&BlockedSignals::all())
                    .map_err(Error::system("merging the snapshot before"))?;
                continue;
            }
            let begin = now();
            self.begin(&mut state)?;
            let (epoch, pages) = (state.epoch, self.used());
            state.task = Some(epoch);
            drop(state);
            let pause_ns = now() - begin;
            self.counters.pauses.record(pause_ns);
            return Ok(SnapshotId { slot: 0, epoch, era: 0, base: self.aside, pages, pause_ns });
        }
    }

    unsafe fn end(&self, id: SnapshotId) {
        let mut state = self.lock();
        if state.task.take_if(|epoch| *epoch == id.epoch).is_some() && state.children.living() > 0 {
            state.detached = state.private.clone();
        }
        drop(state);
        self.wake_up.notify();
    }

    /// Merges all chunks that can be merged.
    fn settle(&self) {
        while self.merge_some(&BlockedSignals::all()) == Ok(Merged::Some) {}
    }

    fn statistics(&self) -> Statistics {
        let mut state = self.lock();
        let children = state.children.living();
        self.statistics_with(&state, children)
    }
}

impl Arena for Region {
    region_as_arena!();

    /// A pinned region has no snapshots in this process, because its page tables would have to be copied.
    fn pin(&self) -> Result<(), Error> {
        self.pin_all()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let mappings = [(self.base, self.pages * PAGE), (self.aside, self.pages * PAGE)];
        for (at, len) in mappings.into_iter().filter(|&(at, _)| at != 0) {
            // SAFETY: the region's own mappings, which no code uses any more.
            let _ = unsafe { munmap(std::ptr::without_provenance_mut(at), len) };
        }
    }
}
