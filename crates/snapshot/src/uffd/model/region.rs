//! The region whose states the protocol's files change in the model.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use loom::sync::atomic::AtomicU32;
use loom::sync::{Mutex, MutexGuard, RwLock};

use super::PAGES;
use super::changes::Changes;
use super::machine::Machine;
use super::mmap_box::MmapArray;
use super::sets::Pages;
use super::snapshots::Snapshots;
use super::target::Target;
use crate::PAGE;

/// Statistics, on which nothing depends.
#[derive(Default)]
pub struct Counters {
    pub snapshots: AtomicU64,
    pub incomplete: AtomicU64,
    pub faults: AtomicU64,
    pub copied: AtomicU64,
    pub armed_at_snapshots: AtomicU64,
    pub claimed: AtomicU64,
}

pub struct Region {
    pub base: usize,
    pub pages: usize,
    pub descriptor: Machine,
    pub gap: usize,
    pub gate: RwLock<Snapshots>,
    latch: Mutex<()>,
    pub claimed: Pages,
    pub unarmed: Pages,
    pub unarmed_count: AtomicUsize,
    pub epochs: MmapArray<AtomicU32>,
    pub changes: Option<Changes>,
    pub used: AtomicUsize,
    pub counters: Counters,
}

impl Region {
    pub fn protect(&self, pages: Range<usize>) -> Result<(), rustix::io::Errno> {
        self.descriptor.protect(self.address(pages.start), pages.len() * PAGE)
    }

    /// Creates a region all of whose pages are claimed and not armed.
    pub fn new() -> Self {
        let region = Self {
            base: 0,
            pages: PAGES,
            descriptor: Machine::new(),
            gap: super::states::GAP,
            gate: RwLock::new(Snapshots::default()),
            latch: Mutex::new(()),
            claimed: Pages::new(PAGES, true).unwrap(),
            unarmed: Pages::new(PAGES, false).unwrap(),
            unarmed_count: AtomicUsize::new(0),
            epochs: MmapArray::new(PAGES, false).unwrap(),
            changes: None,
            used: AtomicUsize::new(0),
            counters: Counters::default(),
        };
        region.claim(0..PAGES);
        region
    }

    /// The same as `new`, with tracking of changes.
    pub fn tracking() -> Self {
        Self { changes: Some(Changes::new(super::SNAPSHOTS, PAGES).unwrap()), ..Self::new() }
    }

    /// Whether a page may have changed between two snapshots. The second one is in `slot`.
    pub fn is_changed(&self, slot: usize, epoch: u32, since: u32, page: usize) -> bool {
        let changes = self.changes.as_ref().expect("it keeps track");
        changes.newest_before(slot, epoch, page, &self.epochs[page]) >= since
    }

    /// The epoch in which a page was last exposed.
    pub fn newest_exposure(&self, page: usize) -> u32 {
        self.epochs[page].load(std::sync::atomic::Ordering::Acquire)
    }

    pub fn latch(&self, page: usize) -> MutexGuard<'_, ()> {
        // All pages are in one chunk.
        assert!(page < PAGES);
        self.latch.lock().unwrap()
    }

    pub fn used(&self) -> usize {
        self.used.load(std::sync::atomic::Ordering::Acquire)
    }

    pub fn address(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    pub fn empty(&self, pages: Range<usize>) {
        self.descriptor.memory().content[pages].fill(0);
    }

    /// The main loop of the handler.
    pub fn handle(&self) {
        while self.descriptor.wait_for_fault() {
            self.serve_faults();
        }
    }

    /// Models a write by the owner.
    pub fn write(&self, page: usize, value: u64) {
        self.descriptor.store(page, value);
    }

    /// Number of pages copied for snapshots.
    pub fn copied(&self) -> u64 {
        self.counters.copied.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Takes a snapshot, which must get this slot. Returns the content that it must show from now on.
    pub fn snapshot(&self, slot: usize) -> [u64; PAGES] {
        let mut snapshots = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let (got, _) = self.add(&mut snapshots, Target(slot)).unwrap();
        assert_eq!(got, slot);
        let mut memory = self.descriptor.memory();
        memory.in_use[slot] = std::array::from_fn(|page| self.claimed.contains(page));
        // No thread can have written since all pages were armed.
        memory.content
    }

    pub fn end(&self, slot: usize) {
        let ended = self.gate.write().unwrap_or_else(PoisonError::into_inner).slots[slot].take();
        assert!(ended.is_some());
    }

    /// The content that a snapshot sees.
    pub fn seen(&self, slot: usize) -> [u64; PAGES] {
        self.descriptor.memory().seen(slot)
    }

    /// Checks the invariants between changes of state.
    pub fn check(&self) {
        let snapshots = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let memory = self.descriptor.memory();
        let unarmed = (0..PAGES).filter(|&page| self.unarmed.contains(page));
        assert_eq!(unarmed.count(), self.unarmed_count.load(std::sync::atomic::Ordering::Relaxed));
        for page in 0..PAGES {
            assert!(memory.protected[page] || self.unarmed.contains(page), "a page is armed and is not");
            for (slot, _) in snapshots.slots.iter().enumerate().filter(|(_, slot)| slot.is_some()) {
                let shares = memory.own[slot][page].is_none();
                assert!(
                    !shares || !memory.in_use[slot][page] || memory.protected[page],
                    "page {page} can be written and is shared"
                );
            }
        }
    }
}
