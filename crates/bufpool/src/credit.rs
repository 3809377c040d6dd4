//! How much longer than others a page stays that is used again and again: the clock with usage counts, or GCLOCK.
//!
//! A clock with one bit for each page knows whether a page was used since the hand passed, and nothing of before: of pages
//! with different popularity it keeps nearly any. So each time the hand finds a page used, the page gets a credit, and
//! each time it does not, it loses one; it goes when it has none. Accesses write no more than they did. The access that
//! brings a page in is none that counts ([`Access`](crate::protocol::word::Access)), so what is used once goes first. Of a page
//! that was brought in unasked, the first use is seen like any other's, but earns nothing.
//!
//! This is advice: nothing depends on a credit being right, so nothing orders their loads and stores.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::protocol::slots::Slot;

/// The most that a page has. More gains little, and keeps what was popular once for longer.
const MOST: u8 = 3;
/// Of a page that was brought in unasked, and that nobody has been seen to use.
const UNASKED: u8 = u8::MAX;

/// So often the hand goes around before every page that nobody uses meanwhile is a victim.
pub(crate) const ROUNDS: usize = 2 + MOST as usize;

/// Of the page in each slot.
pub(crate) struct Credit(Box<[AtomicU8]>);

impl Credit {
    /// Of so many slots.
    pub fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicU8::new(0)).collect())
    }

    fn of(&self, slot: Slot) -> &AtomicU8 {
        &self.0[slot as usize]
    }

    /// Another page is in the slot.
    pub fn begin(&self, slot: Slot) {
        self.of(slot).store(0, Ordering::Relaxed);
    }

    /// It was brought in unasked.
    pub fn begin_unasked(&self, slot: Slot) {
        self.of(slot).store(UNASKED, Ordering::Relaxed);
    }

    /// The page has been used since the hand passed.
    pub fn earn(&self, slot: Slot) {
        let earned = match self.of(slot).load(Ordering::Relaxed) {
            UNASKED => 0,
            credit => MOST.min(credit + 1),
        };
        self.of(slot).store(earned, Ordering::Relaxed);
    }

    /// The page has not been used. Says whether it may stay for now.
    pub fn spend(&self, slot: Slot) -> bool {
        match self.of(slot).load(Ordering::Relaxed) {
            0 | UNASKED => false,
            credit => {
                self.of(slot).store(credit - 1, Ordering::Relaxed);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_earned_and_spent() {
        let credit = Credit::new(2);
        assert!(!credit.spend(1));
        for _ in 0..10 {
            credit.earn(1);
        }
        assert_eq!((0..10).take_while(|_| credit.spend(1)).count(), ROUNDS - 2);
        credit.earn(1);
        credit.begin(1);
        assert!(!credit.spend(1) && !credit.spend(0));
        credit.begin_unasked(1);
        assert!(!credit.spend(1));
        credit.earn(1);
        assert!(!credit.spend(1), "the first use earns nothing");
        credit.earn(1);
        assert!(credit.spend(1) && !credit.spend(1));
    }
}
