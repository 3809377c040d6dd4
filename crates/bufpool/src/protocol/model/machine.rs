//! Memory and storage of a few pages, and what the pool does with words, slots, and both, in as few lines as can be.

use std::array;
use std::sync::Mutex;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::yield_now;

use super::slots::{Slot, Slots};
use super::sweep::{self, Found};
use super::word::{Access, Layout, Owner, Refusal, Word};

/// The protocol's words and locks.
pub mod atomics {
    pub use std::sync::PoisonError;

    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::sync::{Mutex, MutexGuard};
}

/// Pages are 1 and 2.
const PAGES: usize = 3;

/// How pages are found.
#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    /// Each has its word and its memory.
    Mapped,
    /// A table tells which slot's word and memory are its.
    Table,
}

pub struct Machine {
    way: Way,
    slots: Slots,
    words: [Word; PAGES],
    memory: [[AtomicU64; 2]; PAGES],
    /// Not loom's: the order in which it is locked tells loom nothing, so nothing depends on it.
    table: Mutex<[Option<Slot>; PAGES]>,
    storage: Mutex<[[u64; 2]; PAGES]>,
}

impl Machine {
    pub fn new(way: Way, slots: usize) -> Self {
        Self {
            way,
            slots: Slots::new(slots),
            words: array::from_fn(|_| Word::new()),
            memory: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
            table: Mutex::new([None; PAGES]),
            storage: Mutex::new([[0; 2]; PAGES]),
        }
    }

    /// The index of a page's word and memory.
    fn find(&self, page: u64) -> Option<usize> {
        match self.way {
            Way::Mapped => Some(page as usize),
            Way::Table => self.table.lock().unwrap()[page as usize].map(|slot| slot as usize),
        }
    }

    fn is_of(&self, at: usize, page: u64) -> bool {
        self.way == Way::Mapped || self.slots.page(at as Slot) == page
    }

    fn at(&self, slot: Slot, page: u64) -> usize {
        if self.way == Way::Mapped { page as usize } else { slot as usize }
    }

    fn load(&self, at: usize) -> [u64; 2] {
        array::from_fn(|half| self.memory[at][half].load(Ordering::Relaxed))
    }

    fn store(&self, at: usize, content: [u64; 2]) {
        for (word, value) in self.memory[at].iter().zip(content) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn get<T>(
        &self,
        page: u64,
        attempt: impl Fn(&Word) -> Result<T, Refusal>,
        undo: impl Fn(&Word, T),
    ) -> (usize, T) {
        loop {
            let Some(at) = self.find(page) else {
                self.fault(page);
                continue;
            };
            match attempt(&self.words[at]) {
                Ok(result) if self.is_of(at, page) => return (at, result),
                Ok(result) => undo(&self.words[at], result),
                Err(Refusal::Absent) => self.fault(page),
                Err(Refusal::Held) => yield_now(),
            }
        }
    }

    fn fault(&self, page: u64) {
        let slot = loop {
            if let Some(slot) = self.slots.take() {
                break slot;
            }
            if !self.evict() {
                yield_now();
            }
        };
        let Some(at) = self.claim(slot, page) else {
            self.slots.give([slot]);
            yield_now();
            return;
        };
        let content = self.storage.lock().unwrap()[page as usize];
        self.store(at, content);
        self.words[at].publish(Layout::OUTSIDE);
    }

    fn claim(&self, slot: Slot, page: u64) -> Option<usize> {
        let at = self.at(slot, page);
        if self.way == Way::Table {
            // Whether it is there, and that it is: one step, as under a lock.
            let mut table = self.table.lock().unwrap();
            if table[page as usize].is_some() {
                return None;
            }
            table[page as usize] = Some(slot);
        }
        let claimed = self.words[at].try_claim();
        assert!(claimed || self.way == Way::Mapped, "a free slot's word is free");
        claimed.then(|| {
            self.slots.set_page(slot, page);
            at
        })
    }

    /// Evicts all it can, as one batch; whether that was any.
    pub fn evict(&self) -> bool {
        let mut victims = Vec::new();
        for _ in 0..2 * self.slots.count() {
            let slot = self.slots.advance();
            match sweep::consider(&self.slots, slot, |page| &self.words[self.at(slot, page)], || false) {
                Found::Nothing | Found::Cooled => {}
                Found::Dirty => self.write_back(slot, true),
                Found::Victim(page) => victims.push((slot, page)),
            }
        }
        for (slot, page) in &victims {
            if self.way == Way::Table {
                self.table.lock().unwrap()[*page as usize] = None;
            }
            // A released page reads as zeros; a frame as whatever is in it next.
            self.store(self.at(*slot, *page), [0; 2]);
        }
        for (slot, page) in &victims {
            sweep::release(&self.slots, *slot, &self.words[self.at(*slot, *page)], Layout::OUTSIDE);
        }
        let any = !victims.is_empty();
        self.slots.give(victims.into_iter().map(|(slot, _)| slot));
        any
    }

    /// Writes a slot's page if it is dirty and nobody holds it.
    pub fn write_back(&self, slot: Slot, works: bool) {
        let word = |page| &self.words[self.at(slot, page)];
        if let Ok(Some(page)) = sweep::begin_write(&self.slots, slot, word) {
            let copy = self.load(self.at(slot, page));
            assert_eq!(copy[0], copy[1], "a torn copy");
            sweep::copied(word(page));
            yield_now();
            if works {
                self.storage.lock().unwrap()[page as usize] = copy;
            }
            sweep::end_write(&self.slots, slot, word(page), works);
        }
    }

    /// One attempt to read.
    pub fn read_once(&self, page: u64) -> Option<[u64; 2]> {
        let (at, seen) = self.get(page, |word| word.try_optimistic(Owner::ANY, Access::Counted), |_, _| {});
        let content = self.load(at);
        self.words[at].is_unchanged(seen).then_some(content)
    }

    pub fn read(&self, page: u64) -> [u64; 2] {
        loop {
            if let Some(content) = self.read_once(page) {
                return content;
            }
            yield_now();
        }
    }

    pub fn write(&self, page: u64, value: u64) {
        let (at, before) = self.get(
            page,
            |word| word.try_exclusive(Owner::ANY, Access::Counted),
            |word, _| word.unlock_unchanged(),
        );
        self.store(at, [value; 2]);
        self.words[at].unlock_modified(before, Layout::OUTSIDE);
    }

    /// Reads, and writes one more if the page is as it was read.
    pub fn increment(&self, page: u64) {
        loop {
            let (at, seen) =
                self.get(page, |word| word.try_optimistic(Owner::ANY, Access::Counted), |_, _| {});
            let content = self.load(at);
            if let Some(before) = self.words[at].try_upgrade(seen) {
                assert_eq!(content[0], content[1]);
                self.store(at, content.map(|word| word + 1));
                self.words[at].unlock_modified(before, Layout::OUTSIDE);
                return;
            }
            yield_now();
        }
    }

    /// Holds a page shared for as long as `f` runs, which is given what reads it.
    pub fn hold(&self, page: u64, f: impl FnOnce(&dyn Fn() -> [u64; 2])) {
        let (at, ()) = self.get(
            page,
            |word| word.try_shared(Owner::ANY, Access::Counted),
            |word, ()| word.unlock_shared(),
        );
        f(&|| self.load(at));
        self.words[at].unlock_shared();
    }

    /// The page is in storage with this content.
    pub fn keep(&self, page: u64, value: u64) {
        self.storage.lock().unwrap()[page as usize] = [value; 2];
    }

    /// The page is in storage and in memory, clean and cold.
    pub fn settle(&self, page: u64, value: u64) {
        self.keep(page, value);
        self.read(page);
        self.cool(page);
    }

    /// The clock's hand has passed.
    pub fn cool(&self, page: u64) {
        self.words[self.find(page).expect("it is in memory")].pass(|| false);
    }

    pub fn stored(&self, page: u64) -> [u64; 2] {
        self.storage.lock().unwrap()[page as usize]
    }
}
