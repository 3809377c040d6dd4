//! The owner's memory and what is known of it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::munmap;

use super::fold::Folded;
use super::freeze::Frozen;
use super::life::Life;
use super::{CHUNK, SNAPSHOTS};
use crate::engine::Statistics;
use crate::region::{
    Bell, BlockedSignals, Descriptor, Entries, Options, Own, Pages, Refusal, SnapshotId, backing,
    common_methods, now, protect,
};
use crate::{Error, Kind, PAGE};

/// What is said to users whom the kernel tells too little.
const NOT_TOLD: &str = "telling pages that were swapped out takes CAP_SYS_ADMIN";

#[derive(Default)]
pub(super) struct Counters {
    pub snapshots: AtomicU64,
    pub instantaneous: AtomicU64,
    pub folded: AtomicU64,
    pub longest_pause: AtomicU64,
    pub latest_pause: AtomicU64,
}

/// A snapshot that may not have ended.
pub(super) struct Slot {
    pub epoch: u32,
    /// A child's; a task's in this process has none and is ended.
    pub life: Option<Life>,
}

/// What the lock guards.
#[derive(Default)]
pub(super) struct State {
    /// The newest snapshot's number.
    pub epoch: u32,
    /// Pages that are mapped privately.
    pub private: Range<usize>,
    pub slots: [Option<Slot>; SNAPSHOTS],
    /// How often something of `nothing` was mapped.
    pub holes: usize,
}

impl State {
    pub fn end_those_that_are_over(&mut self) {
        for slot in &mut self.slots {
            if slot.as_ref().and_then(|slot| slot.life.as_ref()).is_some_and(Life::is_over) {
                *slot = None;
            }
        }
    }

    /// Whether any has not ended.
    pub fn has_snapshots(&mut self) -> bool {
        self.end_those_that_are_over();
        self.slots.iter().any(Option::is_some)
    }

    pub fn free_slot(&self) -> Result<usize, Error> {
        let free = self.slots.iter().position(Option::is_none);
        free.ok_or(Error::TooManySnapshots { limit: SNAPSHOTS })
    }
}

/// A region. See the [module](super) for its lock and invariants.
pub struct Region {
    pub(super) base: usize,
    /// Where the file is mapped a second time: where tables are set aside.
    pub(super) aside: usize,
    /// Where it is mapped privately, for the next snapshot.
    pub(super) ahead: usize,
    pub(super) pages: usize,
    pub(super) huge_pages: bool,
    pub(super) file: OwnedFd,
    /// A file of holes, as large.
    pub(super) nothing: OwnedFd,
    pub(super) descriptor: Descriptor,
    pub(super) entries: Entries,
    /// See [`protect::needs_a_look`].
    pub(super) needs_a_look: bool,
    state: Mutex<State>,
    pub(super) claimed: Pages,
    pub(super) gone: Pages,
    /// Of chunks: those all of whose pages have entries in the tables made ahead.
    pub(super) prepared: Pages,
    /// No page from this one on was ever claimed.
    pub(super) used: AtomicUsize,
    /// For the search of free pages.
    pub(super) space: Mutex<()>,
    pub(super) bell: Bell,
    pub(super) counters: Counters,
    /// Its thread ends.
    pub(super) over: AtomicBool,
}

impl Region {
    fn set_up(&mut self, options: Options) -> Result<(), Error> {
        for at in [self.base, self.aside] {
            self.advise(at, options.bytes).map_err(Error::system("keeping the region from children"))?;
        }
        self.map_ahead(0..self.pages).map_err(Error::system("mapping the region privately"))?;
        self.try_to_move().map_err(|error| Refusal::Other("moving page tables", error).of(Kind::Remap))?;
        // SAFETY: nobody uses the region yet.
        unsafe { self.descriptor.register(self.base, PAGE) }
            .and_then(|()| self.descriptor.protect(self.base, PAGE))
            .map_err(|_| Refusal::Kernel.of(Kind::Remap))?;
        self.entries.learn(self.base).map_err(|error| Refusal::Other(NOT_TOLD, error).of(Kind::Remap))?;
        self.descriptor.unregister(self.base, PAGE).map_err(|_| Refusal::Kernel.of(Kind::Remap))?;
        if options.claimed {
            self.claim(0..self.pages);
        }
        Ok(())
    }

    pub(super) fn address(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages up to which some were claimed.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// A snapshot begins.
    pub(super) fn begin(&self, state: &mut State) -> Result<(), Error> {
        let moved = self.make_private(state).map_err(Error::system("making the region private"))?;
        state.epoch = state.epoch.wrapping_add(1);
        self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
        self.counters.instantaneous.fetch_add(u64::from(moved), Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn paused(&self, ns: u64) {
        self.counters.latest_pause.store(ns, Ordering::Relaxed);
        self.counters.longest_pause.fetch_max(ns, Ordering::Relaxed);
    }
}

impl crate::region::Region for Region {
    const KIND: Kind = Kind::Remap;

    /// They are the file itself.
    const VIEWS_ARE_WRITABLE: bool = false;

    fn new(options: Options) -> Result<Own<Self>, Error> {
        let descriptor = Descriptor::open().map_err(|refusal| refusal.of(Kind::Remap))?;
        let (file, _) = backing::file(options.bytes, options.huge_pages)
            .map_err(Error::system("making the region's file"))?;
        let (nothing, _) =
            backing::file(options.bytes, false).map_err(Error::system("making a file of holes"))?;
        let entries =
            Entries::open().map_err(|error| Refusal::Other("/proc/self/pagemap", error).of(Kind::Remap))?;
        let Options { bytes, base, .. } = options;
        let base = backing::map(&file, bytes, base).map_err(Error::system("mapping the region"))?;
        // SAFETY: mappings that are made here.
        let unmap = |at: &[usize]| unsafe {
            at.iter().for_each(|&at| {
                let _ = munmap(std::ptr::without_provenance_mut(at), bytes);
            });
        };
        let again = |made: &[usize]| {
            backing::map(&file, bytes, None).map_err(|error| {
                unmap(made);
                Error::System { what: "mapping the region once more", source: error }
            })
        };
        let aside = again(&[base])?;
        let ahead = again(&[base, aside])?;
        let pages = bytes / PAGE;
        let make = || -> Result<Self, Errno> {
            Ok(Self {
                base,
                aside,
                ahead,
                pages,
                huge_pages: options.huge_pages,
                file,
                nothing,
                descriptor,
                entries,
                needs_a_look: protect::needs_a_look(),
                state: Mutex::default(),
                claimed: Pages::new(pages, true)?,
                gone: Pages::new(pages, false)?,
                prepared: Pages::new(pages.div_ceil(CHUNK), false)?,
                used: AtomicUsize::new(0),
                space: Mutex::new(()),
                bell: Bell::new()?,
                counters: Counters::default(),
                over: AtomicBool::new(false),
            })
        };
        let tables = "mapping the region's tables";
        let mut region = make().map_err(|error| {
            unmap(&[base, aside, ahead]);
            Error::System { what: tables, source: error }
        })?;
        region.set_up(options)?;
        Own::new(region).map_err(Error::system(tables))
    }

    common_methods!();

    /// One at a time: when the one before has ended, and has been folded.
    fn snapshot(&self) -> Result<SnapshotId, Error> {
        loop {
            let mut state = self.lock();
            if state.has_snapshots() {
                return Err(Error::TooManySnapshots { limit: 1 });
            }
            if !state.private.is_empty() {
                drop(state);
                self.fold_some(&BlockedSignals::new())
                    .map_err(Error::system("folding the snapshot before"))?;
                continue;
            }
            let begin = now();
            self.begin(&mut state)?;
            let epoch = state.epoch;
            state.slots[0] = Some(Slot { epoch, life: None });
            drop(state);
            let pause_ns = now() - begin;
            self.paused(pause_ns);
            return Ok(SnapshotId { slot: 0, epoch, base: self.aside, pause_ns });
        }
    }

    unsafe fn end(&self, id: SnapshotId) -> bool {
        self.lock().slots[id.slot].take_if(|slot| slot.epoch == id.epoch);
        self.bell.ring();
        // The file has all of it.
        true
    }

    fn has_room(&self) -> bool {
        let mut state = self.lock();
        state.end_those_that_are_over();
        state.free_slot().is_ok()
    }

    /// Folds what can be, and makes tables for the next snapshot.
    fn settle(&self) {
        while self.fold_some(&BlockedSignals::new()) == Ok(Folded::Some) {}
        self.prepare_until(|| false);
    }

    fn statistics(&self) -> Statistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut state = self.lock();
        state.end_those_that_are_over();
        Statistics {
            snapshots: get(&self.counters.snapshots),
            active: state.slots.iter().flatten().count() as u64,
            instantaneous: get(&self.counters.instantaneous),
            pages_copied: get(&self.counters.folded),
            pages_private: state.private.len() as u64,
            longest_pause_ns: get(&self.counters.longest_pause),
            latest_pause_ns: get(&self.counters.latest_pause),
            ..Statistics::default()
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region's own mappings; nobody uses them any more.
        unsafe {
            for at in [self.base, self.aside, self.ahead] {
                let _ = munmap(std::ptr::without_provenance_mut(at), self.pages * PAGE);
            }
        }
    }
}
