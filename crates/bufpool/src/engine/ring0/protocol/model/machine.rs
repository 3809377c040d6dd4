//! The machine of the model, and the pool's steps on it, in the order in which `fault`, `evict` and `writeback` take them.
//!
//! Page `n` has the number `10 n` twice in storage at first. Slot `s` has frame `s + 1`; frame 0 is nobody's.

use std::cell::Cell;

use bedplate_ring0::frames::Frame;
use loom::thread;

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::mapping::{self, Entry, Machine};
use super::slots::{Slot, Slots};
use super::sweep::{self, Found};
use super::word::{Access, Layout, Owner, Refusal, Word};

/// Pages 1 and 2.
const PAGES: usize = 3;
const LAYOUT: Layout = Layout::IN_PAGE;

type Words = [AtomicU64; 2];

/// What all processors share.
pub struct Memory {
    words: Vec<Word>,
    contents: Vec<Words>,
    entries: [Entry; PAGES],
    versions: [AtomicU32; PAGES],
    storage: [Words; PAGES],
    reads: [AtomicU32; PAGES],
    slots: Slots,
}

impl Memory {
    pub fn new(slots: usize) -> Self {
        let both = |value: u64| [AtomicU64::new(value), AtomicU64::new(value)];
        Self {
            words: (0..=slots).map(|_| Word::new()).collect(),
            contents: (0..=slots).map(|_| both(0)).collect(),
            entries: std::array::from_fn(|_| Entry::new(mapping::leaf(Frame::new(0)))),
            versions: std::array::from_fn(|_| AtomicU32::new(0)),
            storage: std::array::from_fn(|page| both(10 * page as u64)),
            reads: std::array::from_fn(|_| AtomicU32::new(0)),
            slots: Slots::new(slots),
        }
    }

    /// How often a page was read from storage.
    pub fn reads(&self, page: usize) -> u32 {
        self.reads[page].load(Ordering::Relaxed)
    }
}

/// A processor.
pub struct Cpu<'m> {
    memory: &'m Memory,
    /// The frames in which it believes pages to be.
    believed: [Cell<Option<u64>>; PAGES],
    forgets: u32,
    accesses: Cell<u32>,
}

impl<'m> Cpu<'m> {
    pub fn new(memory: &'m Memory, forgets: u32) -> Self {
        Self { memory, believed: Default::default(), forgets, accesses: Cell::new(0) }
    }

    /// The frame that an entry leads to.
    pub fn leads_to(&self, page: usize) -> u64 {
        self.memory.entries[page].load().frame().number()
    }

    pub fn believe(&self, page: usize, frame: u64) {
        self.believed[page].set(Some(frame));
    }

    fn translate(&self, page: usize) -> usize {
        let access = self.accesses.replace(self.accesses.get().saturating_add(1));
        if self.forgets >> access.min(31) & 1 == 1 {
            self.believed.iter().for_each(|believed| believed.set(None));
        }
        let frame = self.believed[page].get().unwrap_or_else(|| self.leads_to(page));
        self.believe(page, frame);
        frame as usize
    }

    fn content(&self, page: usize, index: usize) -> &AtomicU64 {
        &self.memory.contents[self.translate(page)][index]
    }

    fn owner(page: usize) -> Owner {
        LAYOUT.owner(page as u64)
    }

    /// What the pool does until an attempt works.
    fn get<T>(&self, page: usize, attempt: impl Fn(&Word) -> Result<T, Refusal>) -> T {
        loop {
            match self.at(page as u64, &attempt) {
                Ok(result) => return result,
                Err(Refusal::Absent) => self.fault(page),
                Err(Refusal::Held) => thread::yield_now(),
            }
        }
    }

    /// Adds one to both numbers of a page that is held exclusively.
    pub fn add(&self, page: usize) {
        let before = self.get(page, |word| word.try_exclusive(Self::owner(page), Access::Counted));
        for index in 0..2 {
            let value = self.content(page, index).load(Ordering::Relaxed);
            self.content(page, index).store(value + 1, Ordering::Relaxed);
        }
        self.at(page as u64, |word| word.unlock_modified(before, LAYOUT));
    }

    /// Begins to read a page optimistically.
    pub fn begin(&self, page: usize) -> u64 {
        self.get(page, |word| word.try_optimistic(Self::owner(page), Access::Counted))
    }

    pub fn is_unchanged(&self, page: usize, seen: u64) -> bool {
        self.at(page as u64, |word| word.is_unchanged(seen))
    }

    /// Reads a page optimistically: its number.
    pub fn read(&self, page: usize) -> u64 {
        loop {
            let seen = self.begin(page);
            let [one, other] = [0, 1].map(|index| self.content(page, index).load(Ordering::Relaxed));
            if self.is_unchanged(page, seen) {
                assert_eq!(one, other, "page {page} at one moment");
                return one;
            }
        }
    }

    fn fault(&self, page: usize) {
        let memory = self.memory;
        if mapping::refresh(self, page as u64) {
            return;
        }
        let slot = self.take_slot();
        if !mapping::claim(self, slot, page as u64) {
            memory.slots.give([slot]);
            // Somebody else has claimed it: they need the processor.
            thread::yield_now();
            return;
        }
        memory.slots.set_page(slot, page as u64);
        for (to, from) in memory.contents[slot as usize + 1].iter().zip(&memory.storage[page]) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // What is read has a word, too: the page's number and the lock bit.
        self.word(slot).set(LAYOUT.locked(page as u64, 0));
        memory.reads[page].fetch_add(1, Ordering::Relaxed);
        mapping::map(self, slot, page as u64);
        self.word(slot).publish(LAYOUT);
    }

    fn take_slot(&self) -> Slot {
        loop {
            if let Some(slot) = self.memory.slots.take() {
                return slot;
            }
            if !self.evict() {
                thread::yield_now();
            }
        }
    }

    /// Passes the hand over each slot. True if a page went.
    fn evict(&self) -> bool {
        let slots = &self.memory.slots;
        let mut evicted = false;
        for slot in 0..slots.count() as Slot {
            let mut found = sweep::consider(slots, slot, |_| self.word(slot), || false);
            if found == Found::Dirty {
                self.write(slot);
                found = sweep::consider(slots, slot, |_| self.word(slot), || false);
            }
            if let Found::Victim(page) = found {
                mapping::keep_version(self, slot, page);
                sweep::release(slots, slot, self.word(slot), LAYOUT);
                slots.give([slot]);
                evicted = true;
            }
        }
        evicted
    }

    fn write(&self, slot: Slot) {
        let memory = self.memory;
        let Ok(Some(page)) = sweep::begin_write(&memory.slots, slot, |_| self.word(slot)) else {
            return;
        };
        let copy = [0, 1].map(|index| memory.contents[slot as usize + 1][index].load(Ordering::Relaxed));
        sweep::copied(self.word(slot));
        for (to, value) in memory.storage[page as usize].iter().zip(copy) {
            to.store(value, Ordering::Relaxed);
        }
        sweep::end_write(&memory.slots, slot, self.word(slot), true);
    }
}

impl Machine for Cpu<'_> {
    fn at<R>(&self, page: u64, access: impl FnOnce(&Word) -> R) -> R {
        access(&self.memory.words[self.translate(page as usize)])
    }

    fn entry(&self, page: u64) -> &Entry {
        &self.memory.entries[page as usize]
    }

    fn flush(&self, page: u64) {
        self.believed[page as usize].set(None);
    }

    fn word(&self, slot: Slot) -> &Word {
        &self.memory.words[slot as usize + 1]
    }

    fn frame(&self, slot: Slot) -> Frame {
        Frame::new(u64::from(slot) + 1)
    }

    fn version(&self, page: u64) -> &AtomicU32 {
        &self.memory.versions[page as usize]
    }
}
