//! Epochs (section 4.1): which snapshots are active, and the order in which they were taken.
//!
//! [`begin`](Epochs::begin) and [`end`](Epochs::end) must be called with the latch held for writing. Code that
//! changes the tables of active snapshots must hold it for reading. [`oldest`](Epochs::oldest) needs no latch.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use bedplate_ring0::word::{Atomic, Atomics};

/// Limit of active snapshots: one for each bit of a word.
pub const MOST: usize = 64;

/// The epochs of a memory. See the module.
#[derive(Debug)]
pub struct Epochs<A: Atomics> {
    /// The epoch of the latest snapshot.
    global: A::U64,
    /// One bit for each slot that is taken.
    taken: A::U64,
    /// One bit for each slot whose snapshot is active.
    active: A::U64,
    /// The epochs of the active snapshots.
    of: [A::U64; MOST],
}

impl<A: Atomics> Epochs<A> {
    pub fn new() -> Self {
        let zero = || A::U64::new(0);
        Self { global: zero(), taken: zero(), active: zero(), of: std::array::from_fn(|_| zero()) }
    }

    /// Takes a free slot for a snapshot, which is not active yet. Returns `None` if there is none.
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

    /// Gives a slot back. Its snapshot must not be active.
    pub fn give_slot(&self, slot: usize) {
        self.taken.fetch_and(!(1 << slot), Release);
    }

    /// Makes a snapshot active, and returns its epoch, which is larger than all earlier ones.
    pub fn begin(&self, slot: usize) -> u64 {
        let epoch = self.global.fetch_add(1, AcqRel) + 1;
        self.of[slot].store(epoch, Relaxed);
        self.active.fetch_or(1 << slot, AcqRel);
        epoch
    }

    /// Ends a snapshot. No processor may use its pages any more.
    pub fn end(&self, slot: usize) {
        self.active.fetch_and(!(1 << slot), AcqRel);
    }

    /// The slots and epochs of the active snapshots.
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

    /// The smallest epoch of an active snapshot. A snapshot that begins meanwhile may be missed. That is harmless,
    /// because its epoch is larger than that of any page already in limbo.
    pub fn oldest(&self) -> Option<u64> {
        self.active().map(|(_, epoch)| epoch).min()
    }

    /// The epoch of the latest snapshot.
    pub fn latest(&self) -> u64 {
        self.global.load(Acquire)
    }
}
