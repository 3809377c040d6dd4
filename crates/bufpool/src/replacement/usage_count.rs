//! Usage counts: a page that is used repeatedly stays longer than others (the clock with usage counts, GCLOCK).
//!
//! A clock with one bit for each page knows only whether a page was used since the hand passed. It keeps popular pages hardly
//! longer than others. So the hand increments the usage count of a page that was used since then, and decrements that of a page
//! that was not. A page is evicted when its count is zero. Accesses write nothing for it. The access that
//! brings a page in does not count ([`Access`](crate::protocol::page_state::Access)), so pages that are used once leave first.
//! The first use of a page that was prefetched does not increment its count.
//!
//! Counts are only hints. No invariant depends on one, so their loads and stores are relaxed.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::protocol::frame_table::FrameId;

/// Maximum count. A larger maximum gains little, and keeps pages that are no longer popular for longer.
const MOST: u8 = 3;
/// The count of a page that was prefetched, and that the hand has not seen in use yet.
const UNASKED: u8 = u8::MAX;

/// Number of rounds of the hand after which every page that no thread uses meanwhile is a victim.
pub(crate) const ROUNDS: usize = 2 + MOST as usize;

/// The usage count of the page in each frame.
pub(crate) struct UsageCounts(Box<[AtomicU8]>);

impl UsageCounts {
    /// Counts for this number of frames.
    pub fn new(frames: usize) -> Self {
        Self((0..frames).map(|_| AtomicU8::new(0)).collect())
    }

    fn of(&self, frame: FrameId) -> &AtomicU8 {
        &self.0[frame as usize]
    }

    /// Resets the count, because another page is in the frame.
    pub fn reset(&self, frame: FrameId) {
        self.of(frame).store(0, Ordering::Relaxed);
    }

    /// Resets the count, because another page is in the frame, and was prefetched.
    pub fn reset_prefetched(&self, frame: FrameId) {
        self.of(frame).store(UNASKED, Ordering::Relaxed);
    }

    /// Records that the page has been used since the hand passed.
    pub fn increment(&self, frame: FrameId) {
        let usage = match self.of(frame).load(Ordering::Relaxed) {
            UNASKED => 0,
            usage => MOST.min(usage + 1),
        };
        self.of(frame).store(usage, Ordering::Relaxed);
    }

    /// Whether the page must leave when the hand finds it unused.
    pub fn is_zero(&self, frame: FrameId) -> bool {
        matches!(self.of(frame).load(Ordering::Relaxed), 0 | UNASKED)
    }

    /// Records that the page has not been used. Returns whether it may stay for now.
    pub fn decrement(&self, frame: FrameId) -> bool {
        match self.of(frame).load(Ordering::Relaxed) {
            0 | UNASKED => false,
            usage => {
                self.of(frame).store(usage - 1, Ordering::Relaxed);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_earned_and_spent() {
        let usage = UsageCounts::new(2);
        assert!(usage.is_zero(1) && !usage.decrement(1));
        for _ in 0..10 {
            usage.increment(1);
        }
        assert!(!usage.is_zero(1) && usage.is_zero(0));
        assert_eq!((0..10).take_while(|_| usage.decrement(1)).count(), ROUNDS - 2);
        usage.increment(1);
        usage.reset(1);
        assert!(!usage.decrement(1) && !usage.decrement(0));
        usage.reset_prefetched(1);
        assert!(usage.is_zero(1) && !usage.decrement(1));
        usage.increment(1);
        assert!(!usage.decrement(1), "the first use earns nothing");
        usage.increment(1);
        assert!(usage.decrement(1) && !usage.decrement(1));
    }
}
