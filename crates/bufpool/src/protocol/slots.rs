//! Slots: as many as pages fit into the pool. Whoever brings a page in has taken a slot before, and a slot is free again
//! when its page's memory has been released; so the pool never uses more memory than it was given.
//!
//! A slot's page (`page`) changes only while that page's word is locked, to the page and to none. Hence whoever has locked
//! a page and finds it in a slot knows that this is the page's slot, and that it stays so until it unlocks.
//!
//! `writing` is taken by whoever writes the slot's page to storage. A page is not evicted, nor written by a second
//! thread, meanwhile; it may be read and changed.
//!
//! The lock of `free` is a leaf: nothing is locked under it.

use super::atomics::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};

/// A slot's number.
pub type Slot = u32;

/// The slots of a pool.
pub struct Slots {
    page: Box<[AtomicU64]>,
    writing: Box<[AtomicBool]>,
    free: Mutex<Vec<Slot>>,
    hand: AtomicUsize,
}

impl Slots {
    /// That many, all of them free.
    pub fn new(count: usize) -> Self {
        Self {
            page: (0..count).map(|_| AtomicU64::new(0)).collect(),
            writing: (0..count).map(|_| AtomicBool::new(false)).collect(),
            free: Mutex::new((0..count as Slot).rev().collect()),
            hand: AtomicUsize::new(0),
        }
    }

    /// That many, none of them free: those that are are somewhere else.
    pub fn all_taken(count: usize) -> Self {
        Self { free: Mutex::default(), ..Self::new(count) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.page.len()
    }

    fn free(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free slot.
    pub fn take(&self) -> Option<Slot> {
        self.free().pop()
    }

    /// Gives slots back that have no page.
    pub fn give(&self, slots: impl IntoIterator<Item = Slot>) {
        self.free().extend(slots);
    }

    /// How many are free.
    pub fn free_count(&self) -> usize {
        self.free().len()
    }

    /// Where the clock's hand is; it moves on.
    pub fn advance(&self) -> Slot {
        (self.hand.fetch_add(1, Ordering::Relaxed) % self.page.len()) as Slot
    }

    /// The page in a slot; zero is none.
    #[inline]
    pub fn page(&self, slot: Slot) -> u64 {
        self.page[slot as usize].load(Ordering::Acquire)
    }

    /// Puts a page into a slot that the caller has taken, or takes it out (zero). The page is locked by the caller.
    pub fn set_page(&self, slot: Slot, page: u64) {
        self.page[slot as usize].store(page, Ordering::Release);
    }

    /// Begins writing the slot's page, unless somebody else does.
    pub fn begin_writing(&self, slot: Slot) -> bool {
        let writing = &self.writing[slot as usize];
        writing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends what [`Slots::begin_writing`] began.
    pub fn end_writing(&self, slot: Slot) {
        self.writing[slot as usize].store(false, Ordering::Release);
    }

    /// Whether the slot's page is being written. After a no, the word tells whether that failed.
    pub fn is_writing(&self, slot: Slot) -> bool {
        self.writing[slot as usize].load(Ordering::Acquire)
    }
}
