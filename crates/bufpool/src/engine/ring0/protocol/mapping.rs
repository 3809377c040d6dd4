//! Figure 10 of the paper: what leads from a page's address to a frame, and who may change it.
//!
//! The word of a page is the header of the frame that holds it; at a page's address it is found by the processor's own
//! translation, which may be old. So an entry that led to a frame stays as it is when the frame is given to another
//! page, and nobody is interrupted for it.
//!
//! Invariants:
//! * A page is present in at most one frame: the one whose word has its number and the bit for it.
//! * While it is, or is locked there, its entry leads to that frame. So whoever holds a page and is led to another frame
//!   than before cannot be: what the processor finds anew is the same.
//! * An entry is changed by the holder of its lock bit only, who has seen, by what the processor finds anew, that the page is
//!   not present. So a page is brought in once.
//! * A frame's word is set by whoever has the frame: a claim from the free list on, a locked page's holder, the evictor.
//! * What is published of a page has a version that it never had before, whichever frame it was in: an optimistic reader
//!   whose page went and came back notices. As the word goes with the frame, the version is kept apart meanwhile.
//!
//! Locks, in this order: the entry's lock bit, the lock bit of words. Nobody waits for an entry while holding a word, or
//! for a word while holding an entry.

use std::mem;

use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{PageSize, Pte, PteFlags, RawSlot};

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::slots::Slot;
use super::word::{Layout, Word};

/// A page-table entry.
pub type Entry = RawSlot<AtomicU64>;

/// What the protocol needs from the machine.
pub trait Machine {
    /// One access to the word at a page's address: in whichever frame this processor believes it to be.
    fn at<R>(&self, page: u64, access: impl FnOnce(&Word) -> R) -> R;
    /// The page's entry.
    fn entry(&self, page: u64) -> &Entry;
    /// This processor forgets where the page is.
    fn flush(&self, page: u64);
    /// The word of the frame in a slot, where that always is.
    fn word(&self, slot: Slot) -> &Word;
    /// The frame of a slot.
    fn frame(&self, slot: Slot) -> Frame;
    /// The version that the page has while it is not present.
    fn version(&self, page: u64) -> &AtomicU32;
}

/// What leads from an address to a frame.
pub fn leaf(frame: Frame) -> Pte {
    // The bits that the processor would set are set, so that it does not have to.
    const FLAGS: PteFlags =
        PteFlags::WRITABLE.union(PteFlags::ACCESSED).union(PteFlags::DIRTY).union(PteFlags::NO_EXECUTE);
    Pte::leaf(frame, PageSize::Size4K, FLAGS)
}

/// Whether the page is present, or about to be, where this processor is led now, after it has forgotten where it was led
/// before: all that was wrong was its own translation.
pub fn refresh<M: Machine>(machine: &M, page: u64) -> bool {
    machine.flush(page);
    machine.at(page, |word| Layout::IN_PAGE.owner(page).has_in_use(word.load()))
}

/// Claims a page that is not present for the caller, who has a free slot for it. False if it is present, or somebody else
/// has claimed it.
pub fn claim<M: Machine>(machine: &M, slot: Slot, page: u64) -> bool {
    let Some(locked) = machine.entry(page).try_lock() else { return false };
    if refresh(machine, page) {
        return false;
    }
    machine.word(slot).set(waiting(machine, page));
    mem::forget(locked);
    true
}

/// The word of a page that is claimed: locked, and not present.
fn waiting<M: Machine>(machine: &M, page: u64) -> u64 {
    let version = machine.version(page).load(Ordering::Relaxed);
    Layout::IN_PAGE.locked(page, u64::from(version))
}

/// Lets everybody find a claimed page, whose memory has its content, in its frame. It is still locked, and the caller's
/// to publish.
pub fn map<M: Machine>(machine: &M, slot: Slot, page: u64) {
    // What was read has the word that was written.
    machine.word(slot).set(waiting(machine, page));
    // Before anybody can lock the page: who does is led here, whenever the processor looks.
    unlock(machine.entry(page), |_| leaf(machine.frame(slot)));
    machine.flush(page);
}

/// Gives up a claim. The slot is the caller's.
pub fn abandon<M: Machine>(machine: &M, slot: Slot, page: u64) {
    machine.word(slot).set(0);
    unlock(machine.entry(page), |pte| pte);
}

/// Keeps the version of a page that is being evicted, before its word becomes another's.
pub fn keep_version<M: Machine>(machine: &M, slot: Slot, page: u64) {
    let version = Layout::IN_PAGE.next_version(machine.word(slot).load());
    machine.version(page).store(version as u32, Ordering::Relaxed);
}

fn unlock(entry: &Entry, change: impl Fn(Pte) -> Pte) {
    // It always changes: the processor may only have set bits meanwhile.
    let _ = entry.update(|pte| Some(change(pte).without(PteFlags::LOCK)));
}
