//! A minimal model of memory and storage for a few pages, and of the pool's operations on states and frames.

use std::array;
use std::sync::Mutex;

use loom::sync::atomic::AtomicU64;
use loom::thread::yield_now;

use super::entry::{self, Entry};
use super::frame_table::{FrameId, FrameTable};
use super::page_state::{Access, Layout, Owner, PageState, Refusal};
use super::sweep::{self, Found};
use super::words;

/// The atomics and locks of the protocol.
pub mod atomics {
    pub use loom::sync::MutexGuard;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

/// The pages are 1 and 2.
const PAGES: usize = 3;

/// A way to find a page.
#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    /// Each page has its own state and memory.
    Mapped,
    /// A table returns the frame, with its state and memory.
    Table,
    /// The translation array returns the frame, without a lock.
    Array,
}

pub struct Machine {
    way: Way,
    frames: FrameTable,
    words: [PageState; PAGES],
    memory: [[AtomicU64; 2]; PAGES],
    /// This is not a loom mutex. Loom does not see the order of its locks, so the protocol cannot depend on that order.
    table: Mutex<[Option<FrameId>; PAGES]>,
    entries: [Entry; PAGES],
    storage: Mutex<[[u64; 2]; PAGES]>,
}

impl Machine {
    pub fn new(way: Way, frames: usize) -> Self {
        Self {
            way,
            frames: FrameTable::new(frames),
            words: array::from_fn(|_| PageState::new()),
            memory: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
            table: Mutex::new([None; PAGES]),
            entries: array::from_fn(|_| Entry::new()),
            storage: Mutex::new([[0; 2]; PAGES]),
        }
    }

    /// The index of a page's state and memory.
    fn find(&self, page: u64) -> Option<usize> {
        match self.way {
            Way::Mapped => Some(page as usize),
            Way::Table => self.table.lock().unwrap()[page as usize].map(|frame| frame as usize),
            Way::Array => self.entries[page as usize].frame().map(|frame| frame as usize),
        }
    }

    fn is_of(&self, at: usize, page: u64) -> bool {
        match self.way {
            Way::Mapped => true,
            Way::Table => self.frames.page(at as FrameId) == page,
            Way::Array => self.entries[page as usize].leads_to(at as FrameId),
        }
    }

    fn at(&self, frame: FrameId, page: u64) -> usize {
        if self.way == Way::Mapped { page as usize } else { frame as usize }
    }

    fn load(&self, at: usize) -> [u64; 2] {
        array::from_fn(|half| words::word(&self.memory[at], half))
    }

    fn store(&self, at: usize, content: [u64; 2]) {
        words::store(&self.memory[at], 0, content.map(u64::to_le_bytes).as_flattened());
    }

    fn get<T>(
        &self,
        page: u64,
        attempt: impl Fn(&PageState, usize) -> Result<T, Refusal>,
        undo: impl Fn(&PageState, T),
    ) -> (usize, T) {
        loop {
            let Some(at) = self.find(page) else {
                self.fault(page);
                continue;
            };
            match attempt(&self.words[at], at) {
                Ok(result) if self.is_of(at, page) => return (at, result),
                Ok(result) => undo(&self.words[at], result),
                Err(Refusal::Absent) => self.fault(page),
                Err(Refusal::Held) => yield_now(),
            }
        }
    }

    fn fault(&self, page: u64) {
        let frame = loop {
            if let Some((frame, _)) = self.frames.take() {
                break frame;
            }
            if !self.evict() {
                yield_now();
            }
        };
        let Some(at) = self.claim(frame, page) else {
            self.frames.free([frame]);
            yield_now();
            return;
        };
        let content = self.storage.lock().unwrap()[page as usize];
        self.store(at, content);
        self.words[at].publish(Layout::OUTSIDE);
    }

    fn claim(&self, frame: FrameId, page: u64) -> Option<usize> {
        let at = self.at(frame, page);
        if self.way == Way::Array {
            let entry = &self.entries[page as usize];
            return entry::claim(&self.frames, entry, frame, &self.words[at], page).then_some(at);
        }
        if self.way == Way::Table {
            // The check and the insertion are one step, as under a lock.
            let mut table = self.table.lock().unwrap();
            if table[page as usize].is_some() {
                return None;
            }
            table[page as usize] = Some(frame);
        }
        let claimed = self.words[at].try_claim();
        assert!(claimed || self.way == Way::Mapped, "a free frame's word is free");
        claimed.then(|| {
            self.frames.set_page(frame, page);
            at
        })
    }

    /// Makes the page impossible to find. The caller has locked it.
    fn forget(&self, page: u64) {
        match self.way {
            Way::Mapped => {}
            Way::Table => self.table.lock().unwrap()[page as usize] = None,
            Way::Array => self.entries[page as usize].clear(),
        }
    }

    /// Claims an absent page, changes its memory, and abandons the claim.
    pub fn fail(&self, page: u64) {
        let Some((frame, _)) = self.frames.take() else { return };
        if let Some(at) = self.claim(frame, page) {
            self.store(at, [99, 98]);
            yield_now();
            let word = &self.words[at];
            if self.way == Way::Array {
                entry::abandon(&self.frames, &self.entries[page as usize], frame, word);
            } else {
                self.forget(page);
                self.frames.set_page(frame, 0);
                word.abandon(Layout::OUTSIDE);
            }
        }
        self.frames.free([frame]);
    }

    /// Claims a page. The returned closure reads it in and publishes it.
    pub fn prefetch(&self, page: u64) -> Option<impl FnOnce() + '_> {
        let (frame, _) = self.frames.take()?;
        let Some(at) = self.claim(frame, page) else {
            self.frames.free([frame]);
            return None;
        };
        Some(move || {
            let content = self.storage.lock().unwrap()[page as usize];
            self.store(at, content);
            self.words[at].publish(Layout::OUTSIDE);
        })
    }

    /// Number of frames that have this page.
    pub fn frames_of(&self, page: u64) -> usize {
        (0..self.frames.count() as FrameId).filter(|frame| self.frames.page(*frame) == page).count()
    }

    /// Evicts all possible pages as one batch. Returns whether there were any.
    pub fn evict(&self) -> bool {
        self.evict_or(|frame| self.write_back(frame, true))
    }

    /// Evicts all clean pages as one batch, like a thread that has a page provider. Returns whether there were any.
    pub fn evict_clean(&self) -> bool {
        self.evict_or(|_| {})
    }

    fn evict_or(&self, meet_dirty: impl Fn(FrameId)) -> bool {
        let mut victims = Vec::new();
        for _ in 0..2 * self.frames.count() {
            let frame = self.frames.advance();
            match sweep::sweep_frame(&self.frames, frame, |page| &self.words[self.at(frame, page)], || false)
            {
                Found::Nothing | Found::Cooled => {}
                Found::Dirty => meet_dirty(frame),
                Found::Victim(page) => victims.push((frame, page)),
            }
        }
        for (frame, page) in &victims {
            self.forget(*page);
            // A released page reads as zeros, and a released frame has the content of its next page.
            self.store(self.at(*frame, *page), [0; 2]);
        }
        for (frame, page) in &victims {
            sweep::release(&self.frames, *frame, &self.words[self.at(*frame, *page)], Layout::OUTSIDE);
        }
        let any = !victims.is_empty();
        self.frames.free(victims.into_iter().map(|(frame, _)| frame));
        any
    }

    /// Writes the dirty pages that the clock's hand finds next and evicts the clean ones, as the page provider does.
    pub fn provide(&self, works: bool) {
        let ahead: Vec<FrameId> = self.frames.ahead(self.frames.count()).collect();
        for frame in ahead {
            if sweep::is_cold_and_dirty(&self.frames, frame, |page| &self.words[self.at(frame, page)]) {
                self.write_back(frame, works);
            }
        }
        self.evict_clean();
    }

    /// Writes a frame's page if it is dirty and no thread holds it. `works` tells whether the write succeeds.
    pub fn write_back(&self, frame: FrameId, works: bool) {
        let word = |page| &self.words[self.at(frame, page)];
        if let Ok(Some(page)) = sweep::begin_write(&self.frames, frame, word) {
            let copy = self.load(self.at(frame, page));
            assert_eq!(copy[0], copy[1], "a torn copy");
            sweep::copied(word(page));
            yield_now();
            if works {
                self.storage.lock().unwrap()[page as usize] = copy;
            }
            sweep::end_write(&self.frames, frame, word(page), works);
        }
    }

    /// Makes one attempt to read.
    pub fn read_once(&self, page: u64) -> Option<[u64; 2]> {
        let (at, seen) =
            self.get(page, |word, _| word.try_optimistic(Owner::ANY, Access::Counted), |_, _| {});
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
            |word, at| word.try_exclusive_or_await(Owner::ANY, Access::Counted, || self.is_of(at, page)),
            |word, _| word.unlock_unchanged(),
        );
        self.store(at, [value; 2]);
        self.words[at].unlock_modified(before, Layout::OUTSIDE);
    }

    /// Reads the page, and writes its value plus one if the page has not changed meanwhile.
    pub fn increment(&self, page: u64) {
        loop {
            let (at, seen) =
                self.get(page, |word, _| word.try_optimistic(Owner::ANY, Access::Counted), |_, _| {});
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

    /// Holds a page shared while `f` runs. `f` gets a closure that reads the page.
    pub fn hold(&self, page: u64, f: impl FnOnce(&dyn Fn() -> [u64; 2])) {
        let (at, ()) = self.get(
            page,
            |word, _| word.try_shared(Owner::ANY, Access::Counted),
            |word, ()| word.unlock_shared(),
        );
        f(&|| self.load(at));
        self.words[at].unlock_shared();
    }

    /// Whether any state has the awaited bit.
    pub fn is_any_awaited(&self) -> bool {
        self.words.iter().any(PageState::is_awaited)
    }

    /// Stores this content of the page in storage.
    pub fn keep(&self, page: u64, value: u64) {
        self.storage.lock().unwrap()[page as usize] = [value; 2];
    }

    /// Puts the page into storage and memory, clean and cold.
    pub fn settle(&self, page: u64, value: u64) {
        self.keep(page, value);
        self.read(page);
        self.cool(page);
    }

    /// Passes the clock's hand over the page.
    pub fn cool(&self, page: u64) {
        self.words[self.find(page).expect("it is in memory")].pass(|| false);
    }

    pub fn stored(&self, page: u64) -> [u64; 2] {
        self.storage.lock().unwrap()[page as usize]
    }
}
