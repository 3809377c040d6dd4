//! The machine of the model, and the pool's steps on it. The steps are in the order of `fault`, `evict` and
//! `write_back`.
//!
//! At first, storage has the number `10 n` twice in page `n`. Pool frame `s` is physical frame `s + 1`. Physical frame
//! 0 is the null frame, which belongs to no page.

use std::cell::Cell;

use bedplate_ring0::frames::Frame as PhysicalFrame;
use loom::thread;

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::frame_table::{FrameId, FrameTable};
use super::mapping::{self, Entry, Machine};
use super::page_state::{Access, Layout, Owner, PageState, Refusal};
use super::sweep::{self, Found};

/// The pages are 1 and 2.
const PAGES: usize = 3;
const LAYOUT: Layout = Layout::IN_PAGE;

type Words = [AtomicU64; 2];

/// The state that all processors share.
pub struct Memory {
    words: Vec<PageState>,
    contents: Vec<Words>,
    entries: [Entry; PAGES],
    versions: [AtomicU32; PAGES],
    storage: [Words; PAGES],
    reads: [AtomicU32; PAGES],
    frames: FrameTable,
}

impl Memory {
    pub fn new(frames: usize) -> Self {
        let both = |value: u64| [AtomicU64::new(value), AtomicU64::new(value)];
        Self {
            words: (0..=frames).map(|_| PageState::new()).collect(),
            contents: (0..=frames).map(|_| both(0)).collect(),
            entries: std::array::from_fn(|_| Entry::new(mapping::leaf(PhysicalFrame::new(0)))),
            versions: std::array::from_fn(|_| AtomicU32::new(0)),
            storage: std::array::from_fn(|page| both(10 * page as u64)),
            reads: std::array::from_fn(|_| AtomicU32::new(0)),
            frames: FrameTable::new(frames),
        }
    }

    /// Number of times that a page was read from storage.
    pub fn reads(&self, page: usize) -> u32 {
        self.reads[page].load(Ordering::Relaxed)
    }
}

/// A processor.
pub struct Cpu<'m> {
    memory: &'m Memory,
    /// The translations that the processor has cached: the physical frame of each page.
    believed: [Cell<Option<u64>>; PAGES],
    forgets: u32,
    accesses: Cell<u32>,
}

impl<'m> Cpu<'m> {
    pub fn new(memory: &'m Memory, forgets: u32) -> Self {
        Self { memory, believed: Default::default(), forgets, accesses: Cell::new(0) }
    }

    /// The physical frame that an entry leads to.
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

    /// Repeats an attempt until it succeeds, like the pool.
    fn get<T>(&self, page: usize, attempt: impl Fn(&PageState) -> Result<T, Refusal>) -> T {
        loop {
            match self.at(page as u64, &attempt) {
                Ok(result) => return result,
                Err(Refusal::Absent) => self.fault(page),
                Err(Refusal::Held) => thread::yield_now(),
            }
        }
    }

    /// Holds a page exclusively, and adds one to both of its numbers.
    pub fn add(&self, page: usize) {
        let before = self.get(page, |word| word.try_exclusive(Self::owner(page), Access::Counted));
        for index in 0..2 {
            let value = self.content(page, index).load(Ordering::Relaxed);
            self.content(page, index).store(value + 1, Ordering::Relaxed);
        }
        self.at(page as u64, |word| word.unlock_modified(before, LAYOUT));
    }

    /// Begins an optimistic read of a page.
    pub fn begin(&self, page: usize) -> u64 {
        self.get(page, |word| word.try_optimistic(Self::owner(page), Access::Counted))
    }

    pub fn is_unchanged(&self, page: usize, seen: u64) -> bool {
        self.at(page as u64, |word| word.is_unchanged(seen))
    }

    /// Reads a page optimistically, and returns its number.
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
        let frame = self.take_frame();
        if !mapping::claim(self, frame, page as u64) {
            memory.frames.free([frame]);
            // Another processor has claimed the page, and needs time.
            thread::yield_now();
            return;
        }
        memory.frames.set_page(frame, page as u64);
        for (to, from) in memory.contents[frame as usize + 1].iter().zip(&memory.storage[page]) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // An image in storage has a header word too: the page's number and the lock bit.
        self.word(frame).set(LAYOUT.locked(page as u64, 0));
        memory.reads[page].fetch_add(1, Ordering::Relaxed);
        mapping::map(self, frame, page as u64);
        self.word(frame).publish(LAYOUT);
    }

    fn take_frame(&self) -> FrameId {
        loop {
            if let Some((frame, _)) = self.memory.frames.take() {
                return frame;
            }
            if !self.evict() {
                thread::yield_now();
            }
        }
    }

    /// Passes the hand over each frame. Returns whether a page was evicted.
    fn evict(&self) -> bool {
        let frames = &self.memory.frames;
        let mut evicted = false;
        for frame in 0..frames.count() as FrameId {
            let mut found = sweep::sweep_frame(frames, frame, |_| self.word(frame), || false);
            if found == Found::Dirty {
                self.write(frame);
                found = sweep::sweep_frame(frames, frame, |_| self.word(frame), || false);
            }
            if let Found::Victim(page) = found {
                mapping::keep_version(self, frame, page);
                sweep::release(frames, frame, self.word(frame), LAYOUT);
                frames.free([frame]);
                evicted = true;
            }
        }
        evicted
    }

    fn write(&self, frame: FrameId) {
        let memory = self.memory;
        let Ok(Some(page)) = sweep::begin_write(&memory.frames, frame, |_| self.word(frame)) else {
            return;
        };
        let copy = [0, 1].map(|index| memory.contents[frame as usize + 1][index].load(Ordering::Relaxed));
        sweep::copied(self.word(frame));
        for (to, value) in memory.storage[page as usize].iter().zip(copy) {
            to.store(value, Ordering::Relaxed);
        }
        sweep::end_write(&memory.frames, frame, self.word(frame), true);
    }
}

impl Machine for Cpu<'_> {
    fn at<R>(&self, page: u64, access: impl FnOnce(&PageState) -> R) -> R {
        access(&self.memory.words[self.translate(page as usize)])
    }

    fn entry(&self, page: u64) -> &Entry {
        &self.memory.entries[page as usize]
    }

    fn flush(&self, page: u64) {
        self.believed[page as usize].set(None);
    }

    fn word(&self, frame: FrameId) -> &PageState {
        &self.memory.words[frame as usize + 1]
    }

    fn physical_frame(&self, frame: FrameId) -> PhysicalFrame {
        PhysicalFrame::new(u64::from(frame) + 1)
    }

    fn version(&self, page: u64) -> &AtomicU32 {
        &self.memory.versions[page as usize]
    }
}
