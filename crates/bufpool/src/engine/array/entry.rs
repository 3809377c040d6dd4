//! One entry of the translation array: the frame of a page, and which thread may change it.
//!
//! The frame's state says whether the page is present and which threads use it, as in every engine. The entry only says
//! which frame it is. Zero means that the page is in no frame. So an array of zeros needs no initialisation.
//!
//! Invariants:
//! - An entry leads to a frame only while the frame's state belongs to the entry's page and is locked or present.
//! - An entry changes from zero to a frame by compare-and-swap. The thread that does so has the frame and has locked
//!   its state. So if two threads claim a page, one of them fails, and a page is in at most one frame.
//! - An entry changes from a frame to zero only by a thread that has locked the frame's state. The thread does so
//!   before it unlocks the state, and before the frame can be free.
//! - Each time a frame gets another page, its state is locked meanwhile and has another version afterwards. Versions
//!   belong to frames, have 52 bits, and never start again.
//!
//! A reader loads the entry, then the frame's state, and then the entry again ([`Entry::leads_to`]). Between the first
//! two loads, the frame may have been given to another page. The third load notices that. The thread that published the
//! other page did so after the entry had changed, and the reader acquired the published state.
//!
//! The page may also have left the frame and returned to it before the third load. In that case, the state has changed
//! since it was loaded, because the eviction and the return each leave another version. So the reader's validation
//! fails. If validation succeeds, the state did not change from the second load on, so no page left or entered the
//! frame. The third load lies in that time, so the frame had the page throughout. A page that returned in another frame
//! makes no difference, because the reader validates the state of the frame that it read.
//!
//! A thread that locks or shares the state checks the entry afterwards. No other thread can change the entry then, so
//! the answer holds until the unlock. If the frame has another page, the thread undoes its change of that page's state.
//!
//! There are no locks except the states.

use super::atomics::{AtomicU32, Ordering};
use super::frame_table::{FrameId, FrameTable};
use super::page_state::{Layout, PageState};

/// The entry of a page that is in no frame.
const ABSENT: u32 = 0;

/// An entry: zero, or the number of a frame plus one. See the module.
#[repr(transparent)]
pub struct Entry(AtomicU32);

impl Entry {
    /// The entry of a page that is in no frame.
    #[allow(dead_code, reason = "the engine's entries are memory of zeros")]
    pub fn new() -> Self {
        Self(AtomicU32::new(ABSENT))
    }

    /// The frame where the page is, or was a moment ago.
    #[inline(always)]
    pub fn frame(&self) -> Option<FrameId> {
        self.0.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether the page is in this frame. The caller has loaded, locked or shared the frame's state before.
    #[inline(always)]
    pub fn leads_to(&self, frame: FrameId) -> bool {
        // The load is `Acquire`. So if the page has returned to the frame, the caller's validation sees the changed
        // state.
        self.0.load(Ordering::Acquire) == frame + 1
    }

    /// Whether the page is in a frame, or a thread is reading it into one.
    pub fn is_claimed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != ABSENT
    }

    /// Clears the entry, so that it leads to no frame. The caller has locked the frame's state.
    pub fn clear(&self) {
        self.0.store(ABSENT, Ordering::Release);
    }
}

/// Claims an absent page for the caller, which reads the page into a free frame that it has taken. Returns false if the
/// page is in a frame, or if another thread has claimed it. In that case the caller keeps its frame.
pub fn claim(frames: &FrameTable, entry: &Entry, frame: FrameId, state: &PageState, page: u64) -> bool {
    if entry.is_claimed() {
        return false;
    }
    // The frame is free, and no thread locks the state of a page that is not present.
    let locked = state.try_claim();
    debug_assert!(locked, "frame {frame} is not free");
    frames.set_page(frame, page);
    // The exchange is `Release`, because a thread that follows the entry must find the state locked.
    let claimed = entry.0.compare_exchange(ABSENT, frame + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !claimed {
        give_up(frames, frame, state);
    }
    claimed
}

/// Abandons a claim. The caller keeps the frame.
pub fn abandon(frames: &FrameTable, entry: &Entry, frame: FrameId, state: &PageState) {
    entry.clear();
    give_up(frames, frame, state);
}

fn give_up(frames: &FrameTable, frame: FrameId, state: &PageState) {
    frames.set_page(frame, 0);
    state.abandon(Layout::OUTSIDE);
}
