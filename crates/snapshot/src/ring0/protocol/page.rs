//! A write to a page that is write-protected for snapshots (Figure 5, with prioritized copy-on-write, section 4.4).
//!
//! Invariants, while snapshots are active:
//! * Main's entry of a page is writable only if no active snapshot's entry leads to main's frame. It therefore
//!   becomes writable last, after those entries lead to a copy and no processor has cached the old ones.
//! * A snapshot's entry leads to main's frame until it leads to a copy, and never leads back. If a compare-and-swap
//!   of the entry succeeds, its frame has not changed in between.
//! * Main's frame of a page never changes.
//!
//! Both functions must be called with the latch held for reading or for writing.

use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{Locked, PteFlags, RawSlot};
use bedplate_ring0::word::Atomics;

use super::Epochs;

/// The operations that the protocol needs from the machine, for the page that is written to.
pub trait World<A: Atomics> {
    /// The entry of the page in the tables of an active snapshot.
    fn entry(&self, slot: usize) -> Option<&RawSlot<A::U64>>;
    /// A new frame with the contents of `of`, or `None` if no frame is free.
    fn copy(&self, of: Frame) -> Option<Frame>;
    /// Takes back a copy that no other code has seen.
    fn discard(&self, copy: Frame);
    /// Puts a copy into limbo.
    fn leave_in_limbo(&self, copy: Frame, end_epoch: u64);
    /// Marks a snapshot as incomplete for lack of memory, and returns the frame that replaces its lost page.
    fn tear(&self, slot: usize) -> Frame;
    /// Waits until no processor of these snapshots (one bit for each slot) uses cached translations of the page.
    fn flush(&self, snapshots: u64);
    /// One iteration of a loop that waits for another processor.
    fn relax(&self);
}

/// Main's entry.
pub type Main<A> = RawSlot<<A as Atomics>::U64>;

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The page was writable already.
    Nothing,
    /// The page is writable now. No snapshot needed a copy.
    Allowed,
    /// The page is writable now. Snapshots have a copy.
    Copied,
    /// The page is writable now. There was no frame for a copy, so a snapshot is incomplete.
    Incomplete,
}

const WRITABLE: PteFlags = PteFlags::WRITABLE;

/// A write by main. The active snapshots that share its frame get one common copy, and main may write.
#[inline(always)] // the path of every first write to a page
pub fn write_by_main<A: Atomics, W: World<A>>(world: &W, main: &Main<A>, epochs: &Epochs<A>) -> Outcome {
    let locked: Locked<'_, A::U64> = loop {
        if let Some(locked) = main.try_lock() {
            break locked;
        }
        world.relax();
    };
    let pte = locked.get();
    if pte.is_writable() {
        return Outcome::Nothing;
    }
    let shared = pte.frame();
    let (mut copy, mut end_epoch, mut cached, mut incomplete) = (None, 0, 0u64, false);
    for (slot, epoch) in epochs.active() {
        let Some(entry) = world.entry(slot) else { continue };
        if entry.load().frame() != shared {
            continue;
        }
        if copy.is_none() {
            copy = world.copy(shared);
        }
        let new = match copy {
            Some(copy) => copy,
            None => {
                incomplete = true;
                world.tear(slot)
            }
        };
        // This fails if the snapshot has just made its own copy.
        if let Ok(old) = entry.update(|pte| (pte.frame() == shared).then(|| pte.at(new))) {
            end_epoch = end_epoch.max(epoch);
            // An entry that was never used is in no TLB.
            cached |= u64::from(old.is_accessed()) << slot;
        }
    }
    if cached != 0 {
        world.flush(cached);
    }
    if let Some(copy) = copy {
        if end_epoch > 0 { world.leave_in_limbo(copy, end_epoch) } else { world.discard(copy) }
    }
    locked.publish(|pte| pte.with(WRITABLE));
    match (incomplete, copy) {
        (true, _) => Outcome::Incomplete,
        (false, Some(_)) if end_epoch > 0 => Outcome::Copied,
        _ => Outcome::Allowed,
    }
}

/// A write by a snapshot. It gets its own page, whether it shared the page with main or with other snapshots. The
/// caller's processor, which is the snapshot's, must flush the page afterwards.
pub fn write_by_snapshot<A: Atomics, W: World<A>>(world: &W, slot: usize, epoch: u64) -> Outcome {
    let Some(entry) = world.entry(slot) else { return Outcome::Nothing };
    loop {
        let pte = entry.load();
        if pte.is_writable() {
            return Outcome::Nothing;
        }
        let copy = world.copy(pte.frame());
        let new = copy.unwrap_or_else(|| world.tear(slot));
        match (entry.compare_exchange(pte, pte.at(new).with(WRITABLE)), copy) {
            (Ok(()), Some(copy)) => {
                world.leave_in_limbo(copy, epoch);
                return Outcome::Copied;
            }
            (Ok(()), None) => return Outcome::Incomplete,
            // Main has made a copy for the snapshot, or the snapshot's processor has used the entry.
            (Err(_), Some(copy)) => world.discard(copy),
            (Err(_), None) => {}
        }
    }
}
