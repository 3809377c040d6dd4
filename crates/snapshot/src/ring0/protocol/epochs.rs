//! Epochs (4.1): which snapshots are active, and in which order they were taken.
//!
//! [`begin`](Epochs::begin) and [`end`](Epochs::end) are called with the latch held for writing; what looks at active
//! snapshots to change their tables holds it for reading. [`oldest`](Epochs::oldest) needs no latch.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use bedplate_ring0::word::{Atomic, Atomics};

/// How many snapshots can be active at once: as many as a word has bits.
pub const MOST: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Epochs<A: Atomics> {
    /// The epoch of the latest snapshot.
    global: A::U64,
    /// A bit for each slot that somebody has.
    taken: A::U64,
    /// A bit for each slot whose snapshot is active.
    active: A::U64,
    /// The epochs of active snapshots.
    of: [A::U64; MOST],
}

impl<A: Atomics> Epochs<A> {
    pub fn new() -> Self {
        let zero = || A::U64::new(0);
        Self { global: zero(), taken: zero(), active: zero(), of: std::array::from_fn(|_| zero()) }
    }

    /// A slot for a snapshot, if there is one; it is not active yet.
    pub fn take_slot(&self) -> Option<usize> {
        loop {
            let free = (!self.taken.load(Relaxed)).trailing_zeros() as usize;
            if free >= MOST {
                return None;
            }
            if self.taken.fetch_or(1 << free, AcqRel) & 1 << free == 0 {
                return Some(free);
            }
        }
    }

    /// Gives a slot back, whose snapshot is not active.
    pub fn give_slot(&self, slot: usize) {
        self.taken.fetch_and(!(1 << slot), Release);
    }

    /// A snapshot becomes active, with an epoch greater than all before.
    pub fn begin(&self, slot: usize) -> u64 {
        let epoch = self.global.fetch_add(1, AcqRel) + 1;
        self.of[slot].store(epoch, Relaxed);
        self.active.fetch_or(1 << slot, AcqRel);
        epoch
    }

    /// A snapshot's pages are used no more, by no processor.
    pub fn end(&self, slot: usize) {
        self.active.fetch_and(!(1 << slot), AcqRel);
    }

    /// Places and epochs of active snapshots.
    #[inline]
    pub fn active(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut left = self.active.load(Acquire);
        std::iter::from_fn(move || {
            let slot = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (slot < MOST).then(|| (slot, self.of[slot].load(Relaxed)))
        })
    }

    /// The epoch of an active snapshot.
    pub fn of(&self, slot: usize) -> u64 {
        self.of[slot].load(Relaxed)
    }

    /// The least epoch of an active snapshot. One that begins meanwhile may be left out: its epoch is greater than
    /// that of any page that was in limbo before.
    pub fn oldest(&self) -> Option<u64> {
        self.active().map(|(_, epoch)| epoch).min()
    }

    /// The epoch of the latest snapshot.
    pub fn latest(&self) -> u64 {
        self.global.load(Acquire)
    }
}
