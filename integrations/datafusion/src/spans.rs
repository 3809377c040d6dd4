//! How what a decoder asks for becomes ranges that the service fetches.
//!
//! Readers of a file share ranges that are equal, whatever else they read. So the ranges of a column chunk depend on nothing but
//! the chunk: it is one range if it fits, and is cut at multiples of [`MAX_RANGE_BYTES`] of the file if it does not.

use std::ops::Range;

use bedplate_scan::MAX_RANGE_BYTES;

/// Some bytes of the file that are fetched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// How many there are: at most [`MAX_RANGE_BYTES`].
    pub len: usize,
}

/// The spans of a range, in their order. An empty range has none. `unit` is the alignment of the reads.
pub fn spans(range: &Range<u64>, unit: u64) -> Vec<Span> {
    let whole = MAX_RANGE_BYTES as u64;
    if range.is_empty() {
        return Vec::new();
    }
    if range.end.next_multiple_of(unit) - range.start / unit * unit <= whole {
        return vec![Span { start: range.start, len: (range.end - range.start) as usize }];
    }
    let mut spans = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min((start / whole + 1) * whole);
        spans.push(Span { start, len: (end - start) as usize });
        start = end;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let spans = spans(&range, unit);
                let mut at = range.start;
                for span in &spans {
                    assert!(span.start == at && span.len > 0);
                    at += span.len as u64;
                    let extent = at.next_multiple_of(unit) - span.start / unit * unit;
                    assert!(extent <= whole, "{range:?} {span:?}");
                }
                assert_eq!(at, range.end, "{range:?}");
            }
            assert_eq!(spans(&(whole - 1..whole + 1), unit).len(), 1, "a chunk that fits is not cut");
        }
    }
}
