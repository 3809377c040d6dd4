//! Page-table entries: the frame that a page's address leads to, and the thread that may change it (figure 10 of the paper).
//!
//! The state of a page is in the header of the frame that holds the page. The processor finds the state at the page's
//! address, through its own translation, which may be stale. So the old entry remains when its frame is given to
//! another page, and no processor is interrupted.
//!
//! Invariants:
//! - A page is present in at most one frame: the frame whose word has the page's number and the present bit.
//! - While a page is present, or is locked in a frame, its entry leads to that frame. So a translation of a page that a
//!   thread holds is current: a new translation is the same.
//! - Only the thread that has an entry's lock bit changes the entry. That thread has seen, with a new translation, that
//!   the page is not present. So two threads cannot read the same page in.
//! - Only the thread that has a frame sets the frame's word. It is the claimer (from the free list on), the thread that
//!   has locked the page, or the evictor.
//! - Each time a page is published, it has a version that it never had before, in any frame. So an optimistic reader
//!   notices that its page left and returned. The word belongs to the frame, so the version of an absent page is stored
//!   separately.
//!
//! Lock order: the lock bit of the entry, then the lock bit of words. No thread waits for an entry while it holds a
//! word, or for a word while it holds an entry.

use std::mem;

use bedplate_ring0::frames::Frame as PhysicalFrame;
use bedplate_ring0::paging::{PageSize, Pte, PteFlags, RawSlot};

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::frame_table::FrameId;
use super::page_state::{Layout, PageState};

/// A page-table entry.
pub type Entry = RawSlot<AtomicU64>;

/// The operations of the machine that the protocol needs.
pub trait Machine {
    /// Accesses the word at a page's address once, through this processor's translation.
    fn at<R>(&self, page: u64, access: impl FnOnce(&PageState) -> R) -> R;
    /// The entry of the page.
    fn entry(&self, page: u64) -> &Entry;
    /// Flushes this processor's translation of the page.
    fn flush(&self, page: u64);
    /// The word of the page in a frame, at the frame's permanent address.
    fn word(&self, frame: FrameId) -> &PageState;
    /// The physical frame of a pool frame.
    fn physical_frame(&self, frame: FrameId) -> PhysicalFrame;
    /// The version of the page while it is not present.
    fn version(&self, page: u64) -> &AtomicU32;
}

/// The entry that leads to a frame.
pub fn leaf(frame: PhysicalFrame) -> Pte {
    // The accessed and dirty bits are set already, so that the processor does not have to set them.
    const FLAGS: PteFlags =
        PteFlags::WRITABLE.union(PteFlags::ACCESSED).union(PteFlags::DIRTY).union(PteFlags::NO_EXECUTE);
    Pte::leaf(frame, PageSize::Size4K, FLAGS)
}

/// Flushes this processor's translation, and checks whether the page is present or about to be. If so, only the
/// translation was stale.
pub fn refresh<M: Machine>(machine: &M, page: u64) -> bool {
    machine.flush(page);
    machine.at(page, |word| Layout::IN_PAGE.owner(page).has_in_use(word.load()))
}

/// Claims an absent page for the caller, which has a free frame for it. Returns false if the page is present, or if
/// another thread has claimed it.
pub fn claim<M: Machine>(machine: &M, frame: FrameId, page: u64) -> bool {
    let Some(locked) = machine.entry(page).try_lock() else { return false };
    if refresh(machine, page) {
        return false;
    }
    machine.word(frame).set(waiting(machine, page));
    mem::forget(locked);
    true
}

/// The word of a page that is claimed: locked and not present.
fn waiting<M: Machine>(machine: &M, page: u64) -> u64 {
    let version = machine.version(page).load(Ordering::Relaxed);
    Layout::IN_PAGE.locked(page, u64::from(version))
}

/// Makes a claimed page visible in its frame. The frame's memory has the page's content. The page stays locked, and the
/// caller publishes it.
pub fn map<M: Machine>(machine: &M, frame: FrameId, page: u64) {
    // The read has overwritten the frame's word with the one that was written to storage.
    machine.word(frame).set(waiting(machine, page));
    // The entry must change before any thread can lock the page. Then a thread that locks the page always gets this
    // frame.
    unlock(machine.entry(page), |_| leaf(machine.physical_frame(frame)));
    machine.flush(page);
}

/// Abandons a claim. The caller keeps the frame.
pub fn abandon<M: Machine>(machine: &M, frame: FrameId, page: u64) {
    machine.word(frame).set(0);
    unlock(machine.entry(page), |pte| pte);
}

/// Stores the version of a page that is being evicted, before another page overwrites its word.
pub fn keep_version<M: Machine>(machine: &M, frame: FrameId, page: u64) {
    let version = Layout::IN_PAGE.next_version(machine.word(frame).load());
    machine.version(page).store(version as u32, Ordering::Relaxed);
}

fn unlock(entry: &Entry, change: impl Fn(Pte) -> Pte) {
    // The update always succeeds. Meanwhile the processor may only have set bits in the entry.
    let _ = entry.update(|pte| Some(change(pte).without(PteFlags::LOCK)));
}
