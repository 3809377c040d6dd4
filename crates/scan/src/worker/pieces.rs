//! Sub-pages: a frame's segments, cut at multiples of the page size in their files.

use crate::board::{Judgment, Segment};

/// A page as it is handed out: some bytes of a file, with their place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The file of the scan, counted from 0.
    pub file: u32,
    /// The offset of the bytes in the file.
    pub offset: u64,
    /// Their address in the channel's memory.
    pub start: *const u8,
    /// Number of bytes.
    pub len: usize,
    /// The time when their read began, by the kernel's monotonic clock; 0 in a scan that watches its files.
    pub read_began_ns: u64,
    pub(crate) judgment: Judgment,
    /// The channel of this process that handed it out.
    pub(crate) channel: u64,
}

impl Piece {
    /// The same as [`Page::is_stable`](crate::Page::is_stable).
    pub fn is_stable(&self) -> bool {
        self.judgment.is_stable
    }
}

/// The position of a worker in a segment.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    segment: Segment,
    page: u64,
}

impl Rest {
    /// All of a segment, in pages of this size.
    pub fn new(segment: Segment, page: usize) -> Self {
        Self { segment, page: page as u64 }
    }

    /// The remaining part of the segment.
    pub fn left(&self) -> Segment {
        self.segment
    }

    /// The next piece. Its `at` is its offset in the frame.
    pub fn next(&mut self) -> Option<Segment> {
        let Segment { file, len, offset, at } = self.segment;
        if len == 0 {
            return None;
        }
        let boundary = (offset / self.page + 1) * self.page;
        let take = u64::from(len).min(boundary - offset) as u32;
        self.segment = Segment { file, len: len - take, offset: offset + u64::from(take), at: at + take };
        Some(Segment { file, len: take, offset, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_the_segment(offset in 0u64..1 << 40, len in 0u32..1 << 21, shift in 12u32..=21) {
            let segment = Segment { file: 1, len, offset, at: 77 };
            let mut rest = Rest::new(segment, 1 << shift);
            let (mut seen, mut pieces) = (0, 0);
            while let Some(piece) = rest.next() {
                prop_assert_eq!((piece.offset, piece.at), (offset + u64::from(seen), 77 + seen));
                prop_assert!(piece.len > 0 && piece.len <= 1 << shift);
                prop_assert_eq!(piece.offset >> shift, (piece.offset + u64::from(piece.len) - 1) >> shift);
                seen += piece.len;
                pieces += 1;
            }
            prop_assert_eq!(seen, len);
            prop_assert!(pieces <= (u64::from(len) >> shift) + 2);
        }
    }
}
