//! The frame table, with a fixed number of frames. A thread takes a frame before it reads a page in. The frame becomes
//! free again after the page's memory has been released. So the pool never uses more memory than it was given.
//!
//! A frame's page (`page`) changes only while that page's state is locked: from none to the page, and back. So a thread
//! that has locked a page and finds it in a frame knows that the page stays in this frame until the unlock.
//!
//! The thread that writes a frame's page to storage sets `writing`. Meanwhile the page is not evicted, and no second
//! thread writes it. Other threads may read and change it.
//!
//! The lock of `free` is a leaf: a thread that holds it takes no other lock.

use super::atomics::{AtomicBool, AtomicU64, AtomicUsize, MutexGuard, Ordering};
use super::counted_mutex::CountedMutex;

/// The number of a frame.
pub type FrameId = u32;

/// The frames of a pool.
pub struct FrameTable {
    page: Box<[AtomicU64]>,
    writing: Box<[AtomicBool]>,
    free: CountedMutex<Vec<FrameId>>,
    hand: AtomicUsize,
}

impl FrameTable {
    /// Makes `count` frames. All of them are free.
    pub fn new(count: usize) -> Self {
        Self {
            page: (0..count).map(|_| AtomicU64::new(0)).collect(),
            writing: (0..count).map(|_| AtomicBool::new(false)).collect(),
            free: CountedMutex::new((0..count as FrameId).rev().collect()),
            hand: AtomicUsize::new(0),
        }
    }

    /// Makes `count` frames. None of them is in the free list, because the engine has its own.
    #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
    pub fn all_taken(count: usize) -> Self {
        Self { free: CountedMutex::new(Vec::new()), ..Self::new(count) }
    }

    /// Number of frames.
    pub fn count(&self) -> usize {
        self.page.len()
    }

    fn free_list(&self) -> MutexGuard<'_, Vec<FrameId>> {
        self.free.lock()
    }

    /// Takes a free frame. Returns it and the number of free frames left. Returns none if no frame is free.
    pub fn take(&self) -> Option<(FrameId, usize)> {
        let mut free = self.free_list();
        let frame = free.pop()?;
        Some((frame, free.len()))
    }

    /// Frees frames that have no page.
    pub fn free(&self, frames: impl IntoIterator<Item = FrameId>) {
        self.free_list().extend(frames);
    }

    /// Number of times that a thread found the free list locked.
    pub fn free_list_waits(&self) -> u64 {
        self.free.waits()
    }

    /// Number of free frames.
    pub fn free_count(&self) -> usize {
        self.free_list().len()
    }

    /// Returns the frame at the clock's hand, and advances the hand.
    pub fn advance(&self) -> FrameId {
        (self.hand.fetch_add(1, Ordering::Relaxed) % self.page.len()) as FrameId
    }

    /// The next `count` frames that the clock's hand passes. The hand does not move.
    pub fn ahead(&self, count: usize) -> impl Iterator<Item = FrameId> + '_ {
        let hand = self.hand.load(Ordering::Relaxed);
        (hand..).take(count).map(|at| (at % self.page.len()) as FrameId)
    }

    /// The page in a frame; zero if there is none.
    #[inline]
    pub fn page(&self, frame: FrameId) -> u64 {
        self.page[frame as usize].load(Ordering::Acquire)
    }

    /// Sets the page of a frame, or removes it (zero). The caller has taken the frame and locked the page.
    pub fn set_page(&self, frame: FrameId, page: u64) {
        self.page[frame as usize].store(page, Ordering::Release);
    }

    /// Begins a write of the frame's page. Returns false if another thread is writing it.
    pub fn begin_writing(&self, frame: FrameId) -> bool {
        let writing = &self.writing[frame as usize];
        writing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends a write that [`FrameTable::begin_writing`] began.
    pub fn end_writing(&self, frame: FrameId) {
        self.writing[frame as usize].store(false, Ordering::Release);
    }

    /// Whether a thread is writing the frame's page. After false, the page's dirty bit tells whether the write failed.
    pub fn is_writing(&self, frame: FrameId) -> bool {
        self.writing[frame as usize].load(Ordering::Acquire)
    }
}
