//! The steps of eviction and write-back.
//!
//! A clean victim goes: locked ([`consider`]) → its memory is released, alone or with a batch of others → [`release`]d.
//! From the first to the last step it is locked, so nobody believes what is in its memory, and nobody brings it in again
//! into memory that is about to be released.
//!
//! A dirty page goes: [`begin_write`] (held shared; the caller copies it) → [`copied`] (nobody is kept from it any more) →
//! the copy is written → [`end_write`]. The slot's `writing` flag keeps the page in memory until storage has the copy: a
//! page that is clean but not yet written would otherwise be evicted, and read in again as it was before.

use super::slots::{Slot, Slots};
use super::word::{Layout, Passed, Refusal, Word};

/// What the clock's hand found in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing to evict now.
    Nothing,
    /// A page that was used since the hand passed before.
    Cooled,
    /// A page that becomes a victim when it has been written.
    Dirty,
    /// A victim. It is locked by the caller, who releases its memory and calls [`release`], or [`spare`].
    Victim(u64),
}

/// Passes the clock's hand over a slot. `word` is the word of a page in a slot; `may_stay` is asked of a page that would have
/// to go, and is the pool's policy: the protocol is right whatever it says.
pub fn consider<'w>(
    slots: &Slots,
    slot: Slot,
    word: impl Fn(u64) -> &'w Word,
    may_stay: impl FnOnce() -> bool,
) -> Found {
    let page = slots.page(slot);
    if page == 0 {
        return Found::Nothing;
    }
    let word = word(page);
    match word.pass(may_stay) {
        Passed::Busy | Passed::Spared => Found::Nothing,
        Passed::Cooled => Found::Cooled,
        Passed::Dirty if slots.is_writing(slot) => Found::Nothing,
        Passed::Dirty => Found::Dirty,
        Passed::Locked => {
            // It may have left the slot before it was locked. It may be about to be written; and when that ended just
            // before, it may have failed, and the page is dirty again. This order of questions leaves no gap.
            if slots.page(slot) != page || slots.is_writing(slot) || word.is_dirty() {
                word.unlock_unchanged();
                return Found::Nothing;
            }
            Found::Victim(page)
        }
    }
}

/// A victim's memory has been released: others may bring the page in, but not yet into its slot, which the caller gives
/// back.
pub fn release(slots: &Slots, slot: Slot, word: &Word, layout: Layout) {
    slots.set_page(slot, 0);
    word.retire(layout);
}

/// A victim's memory could not be released: it is not evicted.
pub fn spare(word: &Word) {
    word.unlock_unchanged();
}

/// A page cannot be written now: somebody holds it, or writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held;

/// Begins to write a slot's page, if there is one that is dirty. It is held shared then, and its writing has begun: the
/// caller copies it and calls [`copied`].
pub fn begin_write<'w>(
    slots: &Slots,
    slot: Slot,
    word: impl Fn(u64) -> &'w Word,
) -> Result<Option<u64>, Held> {
    let page = slots.page(slot);
    if page == 0 {
        return Ok(None);
    }
    if !slots.begin_writing(slot) {
        return Err(Held);
    }
    let word = word(page);
    let result = match word.try_shared_to_write() {
        Err(Refusal::Held) => Err(Held),
        Err(Refusal::Absent) => Ok(None),
        Ok(()) if slots.page(slot) == page && word.is_dirty() => return Ok(Some(page)),
        Ok(()) => {
            word.unlock_shared();
            Ok(None)
        }
    };
    slots.end_writing(slot);
    result
}

/// The page has been copied: it may be changed again, and is clean until it is.
pub fn copied(word: &Word) {
    word.clean();
    word.unlock_shared();
}

/// The copy has been written, or could not be.
pub fn end_write(slots: &Slots, slot: Slot, word: &Word, written: bool) {
    if !written {
        word.soil();
    }
    slots.end_writing(slot);
}

/// A clean page is dirty again, unless somebody holds it or it is gone.
pub fn soil(slots: &Slots, slot: Slot, page: u64, word: &Word) {
    // Nobody evicts it meanwhile.
    if word.try_shared_to_write().is_ok() {
        if slots.page(slot) == page {
            word.soil();
        }
        word.unlock_shared();
    }
}
