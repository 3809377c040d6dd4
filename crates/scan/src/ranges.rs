//! Sets of bytes of files, which can be subtracted from ranges.

use crate::plan::Range;

/// Bytes of files: ranges in order that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    /// The bytes of some ranges, which may overlap.
    pub fn new(ranges: &[Range]) -> Self {
        let mut sorted: Vec<Range> = ranges.iter().copied().filter(|range| range.start < range.end).collect();
        sorted.sort_unstable_by_key(|range| (range.file, range.start));
        let mut set: Vec<Range> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match set.last_mut() {
                Some(last) if last.file == range.file && range.start <= last.end => {
                    last.end = last.end.max(range.end);
                }
                _ => set.push(range),
            }
        }
        Self(set)
    }

    /// Subtracts the set from a range, and calls `keep` with each remaining piece, in order. Returns the number of subtracted
    /// bytes.
    pub fn take_from(&self, range: Range, mut keep: impl FnMut(Range)) -> u64 {
        let before = |other: &Range| (other.file, other.end) <= (range.file, range.start);
        let first = self.0.partition_point(before);
        let (mut at, mut taken) = (range.start, 0);
        for cut in &self.0[first..] {
            if cut.file != range.file || cut.start >= range.end {
                break;
            }
            if cut.start > at {
                keep(Range { start: at, end: cut.start, ..range });
            }
            let (from, to) = (cut.start.max(at), cut.end.min(range.end));
            taken += to - from;
            at = to;
        }
        if at < range.end {
            keep(Range { start: at, ..range });
        }
        taken
    }

    /// Subtracts the set from each of the ranges. Returns the number of subtracted bytes.
    pub fn take_from_all(&self, ranges: &mut Vec<Range>) -> u64 {
        let (mut left, mut taken) = (Vec::with_capacity(ranges.len()), 0);
        for range in ranges.drain(..) {
            taken += self.take_from(range, |range| left.push(range));
        }
        *ranges = left;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn range() -> impl Strategy<Value = Range> {
        (0u32..3, 0u64..60, 0u64..20).prop_map(|(file, start, len)| Range { file, start, end: start + len })
    }

    fn bytes(ranges: &[Range]) -> BTreeSet<(u32, u64)> {
        ranges.iter().flat_map(|range| (range.start..range.end).map(|at| (range.file, at))).collect()
    }

    proptest! {
        /// The remaining pieces are the difference of two sets of bytes, and are in ascending order.
        #[test]
        fn what_is_left_is_the_difference(cut in prop::collection::vec(range(), 0..12), from in range()) {
            let (set, mut left) = (RangeSet::new(&cut), Vec::new());
            let taken = set.take_from(from, |range| left.push(range));
            let expected: BTreeSet<_> = bytes(&[from]).difference(&bytes(&cut)).copied().collect();
            prop_assert_eq!(bytes(&left), expected);
            prop_assert!(left.iter().all(|range| range.start < range.end));
            prop_assert!(left.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", left);
            let len: u64 = left.iter().map(|range| range.end - range.start).sum();
            prop_assert_eq!(taken + len, from.end - from.start);
        }
    }
}
