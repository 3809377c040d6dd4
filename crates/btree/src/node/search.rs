//! Searches for a key in a node. Every operation does this at every level.
//!
//! A search has three steps, each with few cache lines and without branches that depend on the data:
//!
//! 1. The sixteen hints narrow the slots down to one part of seventeen. The hints are one cache line, and are compared
//!    with vector instructions.
//! 2. A binary search over the heads in the slots finds the position.
//! 3. Records are read only where heads are equal.

use std::cmp::Ordering;

use super::view::{Inner, Slots};
use super::{HINT_COUNT, head_after, hint_position};

/// Maps heads to signed numbers in the same order, because processors compare signed numbers with vector instructions.
pub(super) fn biased(head: u32) -> i32 {
    (head ^ 1 << 31).cast_signed()
}

impl<const SLOT: usize> Slots<'_, SLOT> {
    /// The first slot whose key is not below `key`, and whether that key equals `key`.
    ///
    /// `key` must be between the fences, as it is after a descent. The common prefix is not compared.
    #[inline(always)]
    pub fn lower_bound(self, key: &[u8]) -> (usize, bool) {
        let prefix = self.prefix.min(key.len());
        let head = head_after(key, prefix);
        let (from, to) = self.narrow(head);
        let at = self.first_not_below(head, from, to);
        if at >= self.count || self.slot(at).head() != head {
            return (at, false);
        }
        self.among_equal_heads(at, head, &key[prefix..])
    }

    /// The range that contains the first slot whose head is not below `head`. Heads before the range are below `head`,
    /// heads from its end on are not.
    #[inline(always)]
    fn narrow(self, head: u32) -> (usize, usize) {
        let (hints, wanted) = (self.page.hints(), biased(head));
        let below = hints.iter().map(|&hint| i32::from(hint < wanted)).sum::<i32>() as usize;
        let to = if below < HINT_COUNT { hint_position(below, self.count) } else { self.count };
        let from = if below > 0 { hint_position(below - 1, self.count) + 1 } else { 0 };
        (from.min(to), to)
    }

    #[inline(always)]
    fn first_not_below(self, head: u32, from: usize, to: usize) -> usize {
        let (mut at, mut len) = (from, to - from);
        while len > 0 {
            let half = len / 2;
            let below = self.slot(at + half).head() < head;
            at += if below { half + 1 } else { 0 };
            len = if below { len - half - 1 } else { half };
        }
        at
    }

    /// Continues the search at slot `at`, whose head equals `head`.
    #[inline(always)]
    fn among_equal_heads(self, at: usize, head: u32, suffix: &[u8]) -> (usize, bool) {
        match self.compare(at, suffix) {
            Ordering::Equal => (at, true),
            Ordering::Greater => (at, false),
            Ordering::Less => self.after(at + 1, head, suffix),
        }
    }

    /// Continues the search among many equal heads. They occur with long keys that share more than the prefix.
    #[inline(never)]
    fn after(self, from: usize, head: u32, suffix: &[u8]) -> (usize, bool) {
        let (mut at, mut len) = (from, self.count - from.min(self.count));
        while len > 0 {
            let half = len / 2;
            let middle = at + half;
            let order = self.slot(middle).head().cmp(&head).then_with(|| self.compare(middle, suffix));
            match order {
                Ordering::Equal => return (middle, true),
                Ordering::Greater => len = half,
                Ordering::Less => {
                    at = middle + 1;
                    len -= half + 1;
                }
            }
        }
        (at, false)
    }

    /// Compares key `i` with a key that has the same head. `suffix` is that key after the prefix.
    #[inline(always)]
    fn compare(self, i: usize, suffix: &[u8]) -> Ordering {
        let slot = self.slot(i);
        // With equal heads, one key may be shorter than the other by trailing zeros. Then it is a prefix of the other.
        let tail = suffix.get(4..).unwrap_or_default();
        self.tail(slot).compare(tail).then(slot.suffix_len().cmp(&suffix.len()))
    }
}

impl Inner<'_> {
    /// The index of the child that covers `key`.
    #[inline(always)]
    pub fn position(self, key: &[u8]) -> usize {
        let (at, found) = self.lower_bound(key);
        at + usize::from(found)
    }

    /// The index of the child with the keys directly below `key`. `None` is above every key.
    pub fn position_before(self, key: Option<&[u8]>) -> usize {
        key.map_or(self.count, |key| self.lower_bound(key).0)
    }
}
