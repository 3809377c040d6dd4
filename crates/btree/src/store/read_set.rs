//! The read set of a write transaction: keys and ranges. A key that was absent counts as read too.
//!
//! A range that touches or overlaps one of the last ranges is merged with it. So a cursor that starts again after each write of
//! its transaction has one range, and not one for each step. The keys of the union are the keys of both ranges. Several cursors
//! may extend one range, so a range never shrinks.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::error::{Error, Result};
use super::limits::{MAX_READ_BYTES, READ_OVERHEAD, RECENT_RANGES};
use super::versions::Versions;
use crate::scan::is_empty;

type KeyBound = Bound<Vec<u8>>;

#[derive(Default)]
pub(crate) struct ReadSet {
    keys: BTreeMap<u64, BTreeSet<Box<[u8]>>>,
    /// Trees, and the bounds in them.
    ranges: Vec<(u64, KeyBound, KeyBound)>,
    bytes: usize,
}

pub(crate) fn as_slice(bound: &KeyBound) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn len(bound: &KeyBound) -> usize {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key.len(),
        Bound::Unbounded => 0,
    }
}

/// Compares the positions of two bounds among the keys. With `is_high`, they are the ends of ranges, and otherwise the
/// beginnings.
fn compare(left: &KeyBound, right: &KeyBound, is_high: bool) -> Ordering {
    let outermost = if is_high { Ordering::Greater } else { Ordering::Less };
    match (left, right) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => outermost,
        (_, Bound::Unbounded) => outermost.reverse(),
        (Bound::Included(left) | Bound::Excluded(left), Bound::Included(right) | Bound::Excluded(right)) => {
            left.cmp(right)
        }
    }
    .then_with(|| match (left, right) {
        (Bound::Included(_), Bound::Excluded(_)) => outermost,
        (Bound::Excluded(_), Bound::Included(_)) => outermost.reverse(),
        _ => Ordering::Equal,
    })
}

/// Whether a key may be between the end of one range and the beginning of another one.
fn is_gap(high: &KeyBound, low: &KeyBound) -> bool {
    match (high, low) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Excluded(high), Bound::Excluded(low)) => high <= low,
        (Bound::Included(high) | Bound::Excluded(high), Bound::Included(low) | Bound::Excluded(low)) => {
            high < low
        }
    }
}

impl ReadSet {
    fn grow(&mut self, bytes: usize) -> Result<()> {
        if self.bytes + bytes > MAX_READ_BYTES {
            return Err(Error::TransactionTooLarge);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Records the read of a key.
    pub fn key(&mut self, tree: u64, key: &[u8]) -> Result<()> {
        if self.keys.get(&tree).is_some_and(|keys| keys.contains(key)) {
            return Ok(());
        }
        self.grow(key.len() + READ_OVERHEAD)?;
        self.keys.entry(tree).or_default().insert(key.into());
        Ok(())
    }

    /// Records the read of a range. Returns the range of the set that contains it, for [`ReadSet::extend`].
    pub fn range(&mut self, tree: u64, low: KeyBound, high: KeyBound) -> Result<usize> {
        let recent = self.ranges.len().saturating_sub(RECENT_RANGES);
        let is_united = |(of, first, last): &(u64, KeyBound, KeyBound)| {
            *of == tree
                && !is_empty(as_slice(first), as_slice(last))
                && !is_empty(as_slice(&low), as_slice(&high))
                && !is_gap(last, &low)
                && !is_gap(&high, first)
        };
        if let Some(at) = self.ranges[recent..].iter().rposition(is_united) {
            self.extend(recent + at, low, false)?;
            self.extend(recent + at, high, true)?;
            return Ok(recent + at);
        }
        self.grow(len(&low) + len(&high) + READ_OVERHEAD)?;
        self.ranges.push((tree, low, high));
        Ok(self.ranges.len() - 1)
    }

    /// Records that a range was read further: up to this high bound, or down to this low bound.
    pub fn extend(&mut self, range: usize, bound: KeyBound, is_high: bool) -> Result<()> {
        let (_, low, high) = &self.ranges[range];
        let old = if is_high { high } else { low };
        let outward = if is_high { Ordering::Greater } else { Ordering::Less };
        if compare(&bound, old, is_high) != outward {
            return Ok(());
        }
        let before = len(old);
        // The old bound is not remembered any more.
        self.bytes -= before;
        self.grow(len(&bound)).inspect_err(|_| self.bytes += before)?;
        let (_, low, high) = &mut self.ranges[range];
        *(if is_high { high } else { low }) = bound;
        Ok(())
    }

    /// Whether any key of it was written after a snapshot.
    pub fn is_changed(&self, versions: &Versions, snapshot: u64) -> Result<bool> {
        for (tree, keys) in &self.keys {
            for key in keys {
                if versions.is_changed(*tree, key, snapshot)? {
                    return Ok(true);
                }
            }
        }
        for (tree, low, high) in &self.ranges {
            if versions.is_range_changed(*tree, (as_slice(low), as_slice(high)), snapshot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_has_a_limit() {
        let mut reads = ReadSet::default();
        let key = |n: usize| [&n.to_be_bytes()[..], &[0; 512 - 8]].concat();
        let most = MAX_READ_BYTES / (512 + READ_OVERHEAD);
        for n in 0..most {
            reads.key(1, &key(n)).unwrap();
        }
        reads.key(1, &key(0)).unwrap();
        assert!(matches!(reads.key(1, &key(most)), Err(Error::TransactionTooLarge)));
        let range = reads.range(1, Bound::Included(key(1)), Bound::Unbounded);
        assert!(matches!(range, Err(Error::TransactionTooLarge)));
    }

    fn bound(n: u64, len: usize) -> Vec<u8> {
        [&n.to_be_bytes()[..], &vec![0; len]].concat()
    }

    #[test]
    fn a_range_counts_the_bytes_of_its_bounds_and_not_of_those_that_it_had() {
        let mut reads = ReadSet::default();
        let range = reads.range(1, Bound::Unbounded, Bound::Included(bound(0, 0))).unwrap();
        for n in 1..=200_000 {
            let len = if n % 2 == 0 { 0 } else { 500 };
            reads.extend(range, Bound::Included(bound(n, len)), true).unwrap();
        }
        assert_eq!(reads.bytes, READ_OVERHEAD + 8);
    }

    #[test]
    fn ranges_that_touch_count_once() {
        for is_up in [true, false] {
            let mut reads = ReadSet::default();
            let step = |reads: &mut ReadSet, tree, from, to| {
                let (from, to) = (Bound::Excluded(bound(from, 480)), Bound::Included(bound(to, 480)));
                let (low, high) = if is_up { (from, to) } else { (to, from) };
                reads.range(tree, low, high).unwrap()
            };
            // Two cursors alternate, as after writes between their steps.
            for n in 0..100_000 {
                let key = |n| if is_up { n } else { 1_000_000 - n };
                step(&mut reads, 1, key(n), key(n + 1));
                step(&mut reads, 2, key(n), key(n + 1));
            }
            assert_eq!(reads.ranges.len(), 2);
            assert_eq!(reads.bytes, 2 * (READ_OVERHEAD + 2 * 488));
        }
    }

    #[test]
    fn a_range_that_two_cursors_share_never_shrinks() {
        let mut reads = ReadSet::default();
        let key = |n| Bound::Included(bound(n, 0));
        let first = reads.range(1, key(10), key(20)).unwrap();
        let second = reads.range(1, key(15), key(90)).unwrap();
        reads.extend(first, key(21), true).unwrap();
        reads.extend(second, key(80), true).unwrap();
        let versions = Versions::new(1 << 20);
        let entry = |n| super::super::versions::Superseded { tree: 1, key: bound(n, 0).into(), old: None };
        versions.insert(1, [entry(90)]);
        assert!(reads.is_changed(&versions, 0).unwrap());
        assert!(!reads.is_changed(&versions, 1).unwrap());
        for absent in [9, 91] {
            let versions = Versions::new(1 << 20);
            versions.insert(1, [entry(absent)]);
            assert!(!reads.is_changed(&versions, 0).unwrap(), "{absent}");
        }
        let apart = reads.range(1, Bound::Excluded(bound(90, 0)), Bound::Excluded(bound(95, 0))).unwrap();
        let gap = reads.range(1, Bound::Excluded(bound(95, 0)), key(99)).unwrap();
        assert_ne!(apart, gap, "the key between them was not read");
        let empty = reads.range(1, key(300), key(200)).unwrap();
        reads.extend(empty, key(201), true).unwrap();
        versions.insert(2, [entry(95)]);
        versions.insert(3, [entry(201)]);
        assert!(!reads.is_changed(&versions, 1).unwrap(), "an empty range has no key");
    }
}
