//! A bit vector: which chunks of a group of files.

/// Some of the numbers from 0 to a length.
#[derive(Clone, Debug)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
    count: usize,
}

impl Bits {
    /// None of them.
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len, count: 0 }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether a number is one of them.
    pub fn has(&self, bit: usize) -> bool {
        self.words[bit / 64] & 1 << (bit % 64) != 0
    }

    /// Makes a number one of them.
    pub fn set(&mut self, bit: usize) {
        self.count += usize::from(!self.has(bit));
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    /// Makes a number none of them.
    pub fn clear(&mut self, bit: usize) {
        self.count -= usize::from(self.has(bit));
        self.words[bit / 64] &= !(1 << (bit % 64));
    }

    /// The first number that is not one of them: from `from` on, and then from 0.
    pub fn next_missing(&self, from: usize) -> Option<usize> {
        self.missing(from, self.len).or_else(|| self.missing(0, from.min(self.len)))
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
            }
        }
    }
}
