//! A bit vector: a set of the chunks of a group of files, or of the units of a window.

use std::ops::Range;

/// A set of numbers from 0 up to, but not including, a length.
#[derive(Clone, Debug)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
    count: usize,
}

impl Bits {
    /// Creates an empty set of numbers below `len`.
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len, count: 0 }
    }

    /// The number of members.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether a number is a member.
    pub fn has(&self, bit: usize) -> bool {
        self.words[bit / 64] & 1 << (bit % 64) != 0
    }

    /// Adds a number.
    pub fn set(&mut self, bit: usize) {
        self.count += usize::from(!self.has(bit));
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    /// Removes a number.
    pub fn clear(&mut self, bit: usize) {
        self.count -= usize::from(self.has(bit));
        self.words[bit / 64] &= !(1 << (bit % 64));
    }

    /// The first number that is not a member. The search begins at `from`, and continues at 0.
    pub fn next_missing(&self, from: usize) -> Option<usize> {
        self.missing(from, self.len).or_else(|| self.missing(0, from.min(self.len)))
    }

    /// Whether all numbers of a range are members.
    pub fn has_all(&self, range: Range<usize>) -> bool {
        self.missing(range.start, range.end).is_none()
    }

    /// The numbers of a range that are not members, as runs.
    pub fn missing_runs(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut runs, mut at) = (Vec::new(), range.start);
        while let Some(start) = self.missing(at, range.end) {
            at = (start..range.end).find(|bit| self.has(*bit)).unwrap_or(range.end);
            runs.push(start..at);
        }
        runs
    }

    fn missing(&self, from: usize, to: usize) -> Option<usize> {
        let mut at = from;
        while at < to {
            let rest = !self.words[at / 64] >> (at % 64);
            if rest != 0 {
                let found = at + rest.trailing_zeros() as usize;
                return (found < to).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn bits_are_a_set(len in 1usize..300, steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..400)) {
            let (mut bits, mut model) = (Bits::new(len), BTreeSet::new());
            for (index, set) in steps {
                let bit = index.index(len);
                if set {
                    bits.set(bit);
                    model.insert(bit);
                } else {
                    bits.clear(bit);
                    model.remove(&bit);
                }
                prop_assert_eq!((bits.count(), bits.has(bit)), (model.len(), set));
                let missing = (bit..len).chain(0..bit).find(|bit| !model.contains(bit));
                prop_assert_eq!(bits.next_missing(bit), missing);
                let runs = bits.missing_runs(bit..len);
                prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "runs are as long as can be");
                prop_assert_eq!(bits.has_all(bit..len), runs.is_empty());
                let expected: Vec<usize> = (bit..len).filter(|bit| !model.contains(bit)).collect();
                prop_assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), expected);
            }
        }
    }
}
