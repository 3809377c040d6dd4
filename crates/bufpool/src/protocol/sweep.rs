//! The steps of eviction and write-back.
//!
//! Eviction of a clean victim: [`sweep_frame`] locks it, its memory is released (alone or in a batch), [`release`] ends
//! the eviction. The victim is locked from the first step to the last. So no optimistic read of its memory succeeds,
//! and no thread reads the page in again into memory that is about to be released.
//!
//! Write-back of a dirty page: [`begin_write`] takes the page shared, and the caller copies it. [`copied`] releases the
//! page. The caller writes the copy. [`end_write`] ends the write. The frame's `writing` flag keeps the page in memory
//! until storage has the copy. Without the flag, a page that is clean but not yet written could be evicted and read in
//! again in its old state.

use super::frame_table::{FrameId, FrameTable};
use super::page_state::{Layout, PageState, Passed, Refusal};

/// The content of a frame that the clock's hand has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing to evict now.
    Nothing,
    /// A page that was used since the last pass.
    Cooled,
    /// A page that becomes a victim after it has been written.
    Dirty,
    /// A victim, which the caller has locked. The caller releases its memory and calls [`release`], or it calls
    /// [`keep`].
    Victim(u64),
}

/// Passes the clock's hand over a frame. `word` returns the state of a page in the frame. `may_stay` is called for a
/// page that would be evicted. It is the pool's policy: the protocol is correct whatever it returns.
pub fn sweep_frame<'w>(
    frames: &FrameTable,
    frame: FrameId,
    word: impl Fn(u64) -> &'w PageState,
    may_stay: impl FnOnce() -> bool,
) -> Found {
    let page = frames.page(frame);
    if page == 0 {
        return Found::Nothing;
    }
    let word = word(page);
    match word.pass(may_stay) {
        Passed::Busy | Passed::Spared => Found::Nothing,
        Passed::Cooled => Found::Cooled,
        Passed::Dirty if frames.is_writing(frame) => Found::Nothing,
        Passed::Dirty => Found::Dirty,
        Passed::Locked => {
            // The page may have left the frame before it was locked. A write of it may be in progress. If that write
            // has just failed, the page is dirty again. The checks in this order cover all cases.
            if frames.page(frame) != page || frames.is_writing(frame) || word.is_dirty() {
                word.unlock_unchanged();
                return Found::Nothing;
            }
            Found::Victim(page)
        }
    }
}

/// Whether the clock's hand would find a page that must be written before it is evicted. This changes nothing. The answer is only
/// a hint, because [`begin_write`] checks again.
pub fn is_cold_and_dirty<'w>(
    frames: &FrameTable,
    frame: FrameId,
    word: impl Fn(u64) -> &'w PageState,
) -> bool {
    let page = frames.page(frame);
    page != 0 && word(page).is_cold_and_dirty() && !frames.is_writing(frame)
}

/// Ends the eviction of a victim whose memory has been released. Other threads may read the page in again. They cannot
/// use its frame before the caller frees it.
pub fn release(frames: &FrameTable, frame: FrameId, word: &PageState, layout: Layout) {
    frames.set_page(frame, 0);
    word.retire(layout);
}

/// Cancels the eviction of a victim whose memory could not be released.
pub fn keep(word: &PageState) {
    word.unlock_unchanged();
}

/// A page cannot be written now, because a thread holds it or writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held;

/// Begins the write of a frame's page, if the frame has a dirty page. The page is then held shared. The caller copies
/// it and calls [`copied`].
pub fn begin_write<'w>(
    frames: &FrameTable,
    frame: FrameId,
    word: impl Fn(u64) -> &'w PageState,
) -> Result<Option<u64>, Held> {
    let page = frames.page(frame);
    if page == 0 {
        return Ok(None);
    }
    if !frames.begin_writing(frame) {
        return Err(Held);
    }
    let word = word(page);
    let result = match word.try_shared_to_write() {
        Err(Refusal::Held) => Err(Held),
        Err(Refusal::Absent) => Ok(None),
        Ok(()) if frames.page(frame) == page && word.is_dirty() => return Ok(Some(page)),
        Ok(()) => {
            word.unlock_shared();
            Ok(None)
        }
    };
    frames.end_writing(frame);
    result
}

/// Releases a page after it has been copied. It is clean until the next change.
pub fn copied(word: &PageState) {
    word.clean();
    word.unlock_shared();
}

/// Ends the write of a page. `written` tells whether it succeeded.
pub fn end_write(frames: &FrameTable, frame: FrameId, word: &PageState, written: bool) {
    if !written {
        word.mark_dirty();
    }
    frames.end_writing(frame);
}

/// Makes a clean page dirty again, unless another thread holds it exclusively or it has left the frame.
pub fn mark_dirty(frames: &FrameTable, frame: FrameId, page: u64, word: &PageState) {
    // The shared hold prevents eviction meanwhile.
    if word.try_shared_to_write().is_ok() {
        if frames.page(frame) == page {
            word.mark_dirty();
        }
        word.unlock_shared();
    }
}
