//! How what a decoder asks for becomes ranges that the service fetches.
//!
//! A range takes a frame of 2 MiB of the service's memory, a request of the device and a message to the service, whatever its length. So
//! column chunks that are near each other are fetched together, up to [`MAX_RANGE_BYTES`]. A chunk that is longer is cut at multiples of
//! [`MAX_RANGE_BYTES`] of the file.
//!
//! Readers of a file share ranges that are equal. The ranges of a row group depend on nothing but the chunks that are asked for
//! together, so queries that need the same columns share them.

use std::ops::Range;

use bedplate_scan::MAX_RANGE_BYTES;

use crate::limits::{MAX_GAP_BYTES, MAX_GAP_PART};

/// Some bytes of the file that are fetched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// How many there are: at most [`MAX_RANGE_BYTES`].
    pub len: usize,
}

impl Span {
    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.start + self.len as u64
    }

    /// Whether all bytes of a range are in it.
    pub fn covers(self, range: &Range<u64>) -> bool {
        self.start <= range.start && range.end <= self.end()
    }

    /// Where in it a range is that it covers.
    pub fn place_of(self, range: &Range<u64>) -> Range<usize> {
        (range.start - self.start) as usize..(range.end - self.start) as usize
    }
}

/// A span, and what of it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub span: Span,
    /// The numbers of the ranges that are in it.
    pub ranges: Vec<usize>,
    /// Whether it is a part of one range, which is cut.
    pub is_part: bool,
    /// Bytes between the ranges, which nobody asked for.
    gaps: u64,
}

impl Piece {
    /// The piece of a span that covers one range.
    pub fn new(span: Span, range: usize) -> Self {
        Self { span, ranges: vec![range], is_part: false, gaps: 0 }
    }

    /// Adds a range that does not begin before the others, if it is near enough.
    fn add(&mut self, number: usize, range: &Range<u64>, unit: u64) -> bool {
        let (start, end) = (self.span.start, self.span.end().max(range.end));
        let gap = range.start.saturating_sub(self.span.end());
        let gaps = self.gaps + gap;
        let fits = extent(&(start..end), unit) <= MAX_RANGE_BYTES as u64;
        let is_near = gap <= MAX_GAP_BYTES && gaps <= (end - start) / MAX_GAP_PART;
        if self.is_part || !fits || !is_near {
            return false;
        }
        self.span.len = (end - start) as usize;
        self.gaps = gaps;
        self.ranges.push(number);
        true
    }
}

/// Bytes of the read of a range.
fn extent(range: &Range<u64>, unit: u64) -> u64 {
    range.end.next_multiple_of(unit) - range.start / unit * unit
}

/// The pieces of ranges with numbers, by their places in the file. An empty range has none. `unit` is the alignment of the reads.
pub fn pieces<'a>(ranges: impl IntoIterator<Item = (usize, &'a Range<u64>)>, unit: u64) -> Vec<Piece> {
    let mut ranges: Vec<_> = ranges.into_iter().filter(|(_, range)| !range.is_empty()).collect();
    ranges.sort_by_key(|(_, range)| range.start);
    let mut pieces: Vec<Piece> = Vec::new();
    for (number, range) in ranges {
        if pieces.last_mut().is_some_and(|last| last.add(number, range, unit)) {
            continue;
        }
        let cut = cut(range, unit);
        let is_part = cut.len() > 1;
        pieces.extend(cut.into_iter().map(|span| Piece { is_part, ..Piece::new(span, number) }));
    }
    pieces
}

/// The spans of one range.
fn cut(range: &Range<u64>, unit: u64) -> Vec<Span> {
    let whole = MAX_RANGE_BYTES as u64;
    let span = |start, end| Span { start, len: (end - start) as usize };
    if extent(range, unit) <= whole {
        return vec![span(range.start, range.end)];
    }
    let mut spans = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min((start / whole + 1) * whole);
        spans.push(span(start, end));
        start = end;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pieces_of(ranges: &[Range<u64>]) -> Vec<(Range<u64>, Vec<usize>)> {
        let pieces = pieces(ranges.iter().enumerate(), 4096);
        pieces.into_iter().map(|piece| (piece.span.start..piece.span.end(), piece.ranges)).collect()
    }

    #[test]
    fn spans_are_a_range_s_bytes_and_fit() {
        let whole = MAX_RANGE_BYTES as u64;
        for unit in [512, 4096] {
            for range in [
                0..1,
                0..whole,
                1..whole,
                1..whole + 1,
                4095..whole + 4095,
                5000..5 * whole + 17,
                whole - 1..whole + 1,
                3 * whole..7 * whole,
                10..10,
            ] {
                let pieces = pieces([(3, &range)], unit);
                let mut at = range.start;
                for Piece { span, ranges, is_part, .. } in &pieces {
                    assert!(span.start == at && span.len > 0);
                    at = span.end();
                    assert!(extent(&(span.start..at), unit) <= whole, "{range:?} {span:?}");
                    assert!(*ranges == [3] && *is_part == (pieces.len() > 1));
                }
                assert_eq!(at, range.end, "{range:?}");
            }
            assert_eq!(cut(&(whole - 1..whole + 1), unit).len(), 1, "a chunk that fits is not cut");
        }
    }

    #[test]
    fn ranges_that_are_near_each_other_are_one_piece() {
        let near = [MIB..2 * MIB, 1000..5000, 5000..MIB];
        assert_eq!(pieces_of(&near), [(1000..2 * MIB, vec![1, 2, 0])]);
        // A gap that is small beside what is around it.
        let gap = MAX_GAP_BYTES;
        assert_eq!(pieces_of(&[0..MIB, MIB + gap..MIB + gap + 5000]).len(), 1);
        assert_eq!(pieces_of(&[0..MIB, MIB + gap + 1..MIB + gap + 5000]).len(), 2, "the gap is large");
        assert_eq!(pieces_of(&[0..5000, 6000..11000, 12000..13000]).len(), 2, "the gaps are much of it");
        assert_eq!(pieces_of(&[0..MIB, MIB..2 * MIB, 2 * MIB..2 * MIB + 1]).len(), 2, "a range has 2 MiB");
        // What overlaps is read once.
        assert_eq!(pieces_of(&[0..9000, 100..200, 8000..10000]), [(0..10000, vec![0, 1, 2])]);
        // Nothing is added to a chunk that is cut.
        let cut = pieces_of(&[0..3 * MIB, 3 * MIB..3 * MIB + 100]);
        assert_eq!(
            cut,
            [(0..2 * MIB, vec![0]), (2 * MIB..3 * MIB, vec![0]), (3 * MIB..3 * MIB + 100, vec![1])]
        );
    }
}
