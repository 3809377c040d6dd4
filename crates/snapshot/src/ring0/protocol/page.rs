//! A write to a page that is write-protected for snapshots (Figure 5, with prioritized copy-on-write, 4.4).
//!
//! Invariants, while snapshots are active:
//! * Main's entry of a page is writable only if no active snapshot's entry leads to main's frame. So it becomes so
//!   last, after those entries lead to a copy and no processor has the old ones cached.
//! * A snapshot's entry leads to main's frame until it leads to a copy, and never back. So if it can be compared and
//!   swapped, what it leads to has not changed in between.
//! * Main's frame of a page is always the same.
//!
//! Both functions are called with the latch held for reading (or for writing).

use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{Locked, PteFlags, RawSlot};
use bedplate_ring0::word::Atomics;

use super::Epochs;

/// What the protocol needs from the machine, about the page that was written to.
pub trait World<A: Atomics> {
    /// The entry in the tables of an active snapshot.
    fn entry(&self, slot: usize) -> Option<&RawSlot<A::U64>>;
    /// A new frame with the contents of this one, if there is one.
    fn copy(&self, of: Frame) -> Option<Frame>;
    /// Takes a copy back that nobody has seen.
    fn discard(&self, copy: Frame);
    /// Puts a copy into limbo.
    fn leave_in_limbo(&self, copy: Frame, end_epoch: u64);
    /// Marks a snapshot as lost for want of memory, and says which frame stands for what it lost.
    fn tear(&self, slot: usize) -> Frame;
    /// Returns when no processor on these snapshots (a bit for each slot) uses what it has cached of the page.
    fn flush(&self, snapshots: u64);
    /// One turn of a loop that waits for another processor.
    fn relax(&self);
}

/// Main's entry.
pub type Main<A> = RawSlot<<A as Atomics>::U64>;

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The page was writable already.
    Nothing,
    /// It is writable now; no snapshot needed it.
    Allowed,
    /// A snapshot has a copy now.
    Copied,
    /// There was no frame for a copy, so a snapshot is lost.
    Incomplete,
}

const WRITABLE: PteFlags = PteFlags::WRITABLE;

/// Main writes: active snapshots that share its frame get one copy, together, and main may write.
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
        // It fails if the snapshot has just made a copy of its own.
        if let Ok(old) = entry.update(|pte| (pte.frame() == shared).then(|| pte.at(new))) {
            end_epoch = end_epoch.max(epoch);
            // What has not been used is in no TLB.
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

/// A snapshot writes: it gets a page of its own, whomever it shared it with. Its processor, which is the caller's,
/// flushes the page afterwards.
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
            // Main has made a copy for it, or its processor has used the entry.
            (Err(_), Some(copy)) => world.discard(copy),
            (Err(_), None) => {}
        }
    }
}
