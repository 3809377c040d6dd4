//! The plan of a scan: disjoint byte ranges of files become one stream of frames (paper 3.3.1, 5.1.2).
//!
//! A [`Chunk`] is the content of one frame. Several small ranges share a frame, and a large range takes many. Cuts are at
//! multiples of the worker's page size in the file, so that every page is whole except at the ends of ranges.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::board::{SEGMENTS, Segment};
use crate::limits::MAX_PENDING_RANGES;
use crate::memory::FRAME;
use crate::ranges::RangeSet;
use crate::source::File;
use crate::{Error, Result};

/// Bytes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The index of the file in the scan, from 0.
    pub file: u32,
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// A segment, and the read that loads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The bytes that the worker sees.
    pub segment: Segment,
    /// The file offset where the read begins: at or before the segment, aligned.
    pub from: u64,
    /// The file offset where the read ends: at or after the segment, aligned, possibly beyond the file's end.
    pub to: u64,
    /// The offset in the frame where the read begins, with the same alignment.
    pub at: u32,
}

/// The content of one frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The parts, in the order in which the worker sees them.
    pub parts: Vec<Part>,
}

impl Chunk {
    /// The number of bytes that the worker sees.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.segment.len)).sum()
    }
}

/// The ranges of a scan that have not been put into frames yet.
#[derive(Clone, Debug)]
pub struct Plan {
    units: Vec<u64>,
    sizes: Vec<u64>,
    page: u64,
    ranges: VecDeque<Range>,
    pending: Pending,
}

/// The number of ranges in a plan, for other threads than the plan's. The value may be out of date.
#[derive(Clone, Debug, Default)]
pub struct Pending(Arc<AtomicUsize>);

impl Pending {
    /// The number of ranges.
    pub fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Plan {
    /// Creates an empty plan for these files and this page size, in bytes.
    pub fn new(files: &[File], page: usize) -> Self {
        Self {
            units: files.iter().map(|file| file.unit.into()).collect(),
            sizes: files.iter().map(|file| file.size).collect(),
            page: page as u64,
            ranges: VecDeque::new(),
            pending: Pending::default(),
        }
    }

    /// Creates an empty plan for files of these sizes, for tests without files.
    #[cfg(test)]
    pub fn of_sizes(sizes: &[u64], page: usize) -> Self {
        Self {
            units: vec![4096; sizes.len()],
            sizes: sizes.to_vec(),
            page: page as u64,
            ranges: VecDeque::new(),
            pending: Pending::default(),
        }
    }

    /// A handle that shows the plan's number of ranges from now on.
    pub fn pending(&self) -> Pending {
        self.pending.clone()
    }

    fn publish(&self) {
        self.pending.0.store(self.ranges.len(), Relaxed);
    }

    /// The page size, in bytes.
    pub fn page_size(&self) -> usize {
        self.page as usize
    }

    /// One range for each file: the whole file.
    pub fn everything(&self) -> Vec<Range> {
        (0..).zip(&self.sizes).map(|(file, size)| Range { file, start: 0, end: *size }).collect()
    }

    /// Checks that the ranges lie within the plan's files.
    pub fn check(&self, ranges: &[Range]) -> Result<()> {
        for range in ranges {
            let size = *self.sizes.get(range.file as usize).ok_or_else(|| {
                Error::Invalid(format!("a range of file {}, and there are {}", range.file, self.sizes.len()))
            })?;
            if range.start > range.end || range.end > size {
                return Err(Error::Invalid(format!(
                    "a range from {} to {} of file {}, which has {size} bytes",
                    range.start, range.end, range.file
                )));
            }
        }
        Ok(())
    }

    /// Adds ranges. They never share chunks with ranges that were added before. This call does not visit the pending ranges,
    /// because ranges may come in many small batches, while the control loop has other work.
    pub fn add(&mut self, ranges: &[Range]) -> Result<()> {
        self.check(ranges)?;
        if self.ranges.len() + 1 + ranges.len() > MAX_PENDING_RANGES {
            return Err(Error::Invalid(format!(
                "{} ranges beside {} that are announced and not read yet: at most {MAX_PENDING_RANGES}, of which each \
                 announcement takes one more",
                ranges.len(),
                self.ranges.len()
            )));
        }
        // An empty range ends a chunk.
        if self.ranges.back().is_none_or(|last| last.start < last.end) {
            self.ranges.push_back(Range { file: 0, start: 0, end: 0 });
        }
        self.ranges.extend(ranges.iter().filter(|range| range.start < range.end));
        self.publish();
        Ok(())
    }

    /// All chunks.
    pub fn into_chunks(mut self) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        while let Some(mut chunk) = self.next_chunk() {
            chunk.parts.shrink_to_fit();
            chunks.push(chunk);
        }
        chunks
    }

    /// Puts the bytes of a chunk back into the plan. The chunk must be the last one that the plan returned.
    pub fn give_back(&mut self, chunk: &Chunk) {
        for part in chunk.parts.iter().rev() {
            let Segment { file, len, offset, .. } = part.segment;
            let end = offset + u64::from(len);
            match self.ranges.front_mut() {
                Some(next) if next.file == file && next.start == end => next.start = offset,
                _ => self.ranges.push_front(Range { file, start: offset, end }),
            }
        }
        self.publish();
    }

    /// Removes the bytes of these ranges from the plan. Returns the number of removed bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`]: cancelling would leave too many pieces. Then nothing is cancelled.
    pub fn cancel(&mut self, ranges: &RangeSet) -> Result<u64> {
        let (mut left, mut cancelled) = (VecDeque::with_capacity(self.ranges.len()), 0);
        for range in &self.ranges {
            if range.start == range.end {
                left.push_back(*range);
            } else {
                cancelled += ranges.take_from(*range, |range| left.push_back(range));
            }
        }
        if left.len() > MAX_PENDING_RANGES.max(self.ranges.len()) {
            return Err(Error::Invalid(format!(
                "cancelling would leave {} pieces of ranges: at most {MAX_PENDING_RANGES} may be pending",
                left.len()
            )));
        }
        self.ranges = left;
        self.publish();
        Ok(cancelled)
    }

    /// Takes the next chunk. `None`: no range is left.
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        let mut chunk = Chunk::default();
        let mut used = 0u64;
        while chunk.parts.len() < SEGMENTS {
            let Some(range) = self.ranges.front_mut() else { break };
            if range.start == range.end {
                self.ranges.pop_front();
                if chunk.parts.is_empty() {
                    continue;
                }
                break;
            }
            let unit = self.units[range.file as usize];
            let from = range.start / unit * unit;
            // The next part may not be able to begin where the previous one ends, because its file may have a larger unit.
            let at = used.next_multiple_of(unit);
            let room = (FRAME as u64).saturating_sub(at);
            if room < unit {
                break;
            }
            let mut end = range.end.min(from + room);
            if end < range.end {
                let cut = self.page.max(unit);
                end = end / cut * cut;
                if end <= range.start {
                    break;
                }
            }
            let to = end.next_multiple_of(unit);
            let segment = Segment {
                file: range.file,
                len: (end - range.start) as u32,
                offset: range.start,
                at: (at + range.start - from) as u32,
            };
            chunk.parts.push(Part { segment, from, to, at: at as u32 });
            used = at + (to - from);
            range.start = end;
            if range.start == range.end {
                self.ranges.pop_front();
            }
        }
        self.publish();
        (!chunk.parts.is_empty()).then_some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunks(plan: &mut Plan) -> Vec<Chunk> {
        std::iter::from_fn(|| plan.next_chunk()).collect()
    }

    #[test]
    fn a_file_is_cut_into_frames() {
        let mut plan = Plan::of_sizes(&[5 << 20], FRAME);
        let all = plan.everything();
        plan.add(&all).unwrap();
        assert_eq!(plan.clone().into_chunks().len(), 3);
        let lens: Vec<u64> = chunks(&mut plan).iter().map(Chunk::bytes).collect();
        assert_eq!(lens, [2 << 20, 2 << 20, 1 << 20]);
    }

    #[test]
    fn small_ranges_share_a_frame_and_nothing_else_is_read() {
        let mut plan = Plan::of_sizes(&[1 << 30], 4096);
        let ranges: Vec<Range> =
            (0..64u64).map(|i| Range { file: 0, start: (2 * i + 1) << 16, end: (2 * i + 2) << 16 }).collect();
        plan.add(&ranges).unwrap();
        let chunks = chunks(&mut plan);
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[0].parts.len(), 32);
        assert!(chunks.iter().flat_map(|c| &c.parts).all(|part| part.to - part.from == 1 << 16));
    }

    #[test]
    fn wrong_ranges_are_refused() {
        let mut plan = Plan::of_sizes(&[100], 4096);
        for (file, start, end) in [(1, 0, 1), (0, 5, 4), (0, 0, 101)] {
            assert!(plan.add(&[Range { file, start, end }]).is_err());
        }
        for _ in 0..3 {
            plan.add(&[]).unwrap();
        }
        assert!(plan.ranges.len() <= 1, "nothing was added");
        assert_eq!(plan.next_chunk(), None);
    }

    /// The plan refuses more ranges than may be pending, whether they are announced or left by cancelling. The pending ranges
    /// stay.
    #[test]
    fn pending_ranges_have_a_limit() {
        let ranges = |count: usize| -> Vec<Range> {
            let start = |at| (at as u64) << 13;
            (0..count).map(|at| Range { file: 0, start: start(at), end: start(at) + 8192 }).collect()
        };
        let mut plan = Plan::of_sizes(&[(MAX_PENDING_RANGES as u64) << 13], 4096);
        let error = plan.add(&ranges(MAX_PENDING_RANGES)).unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.contains("at most 1048576")), "{error}");
        plan.add(&ranges(MAX_PENDING_RANGES - 1)).unwrap();
        assert!(plan.add(&ranges(1)).is_err());
        let middle = RangeSet::new(&[Range { file: 0, start: 4096, end: 4097 }]);
        let error = plan.cancel(&middle).unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.contains("at most 1048576")), "{error}");
        // Ranges that are read make room for others.
        let read = plan.next_chunk().unwrap().parts.len();
        assert!(plan.pending().count() <= MAX_PENDING_RANGES - read);
        plan.add(&ranges(read - 1)).unwrap();
    }

    /// Adding a batch does not copy the pending ranges. Copies would take minutes here.
    #[test]
    fn many_small_batches_are_added_to_what_is_there() {
        const BATCHES: u64 = 400_000;
        let mut plan = Plan::of_sizes(&[BATCHES << 13], 4096);
        let begin = std::time::Instant::now();
        for batch in 0..BATCHES {
            plan.add(&[Range { file: 0, start: batch << 13, end: (batch << 13) + 4096 }]).unwrap();
        }
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{:?}", begin.elapsed());
        assert_eq!(plan.into_chunks().len() as u64, BATCHES);
    }

    /// A part that is read in large units does not exceed a frame that starts with small units.
    #[test]
    fn files_of_other_units_share_a_frame() {
        let mut plan = Plan::of_sizes(&[4096, 4 << 20], 4096);
        plan.units[1] = 64 << 10;
        let frame = FRAME as u64;
        let ranges = [(0, 0, 4096), (1, 0, frame - 4096), (0, 0, 4096)];
        plan.add(&ranges.map(|(file, start, end)| Range { file, start, end })).unwrap();
        let parts: Vec<Vec<_>> = chunks(&mut plan)
            .iter()
            .map(|chunk| chunk.parts.iter().map(|part| (part.at, part.from, part.to)).collect())
            .collect();
        let cut = frame - (64 << 10);
        assert_eq!(
            parts,
            [vec![(0, 0, 4096), (64 << 10, 0, cut)], vec![(0, cut, frame), (64 << 10, 0, 4096)]]
        );
    }

    proptest! {
        /// The test takes chunks, gives one back, and cancels some of the rest. Every other byte comes once, in order.
        #[test]
        fn what_is_cancelled_does_not_come(
            ranges in prop::collection::vec((0u32..2, 0u64..9 << 20, 0u64..5 << 20), 0..20),
            cancelled in prop::collection::vec((0u32..2, 0u64..9 << 20, 0u64..5 << 20), 0..20),
            taken in 0usize..6,
        ) {
            let of = |ranges: Vec<(u32, u64, u64)>| -> Vec<Range> {
                ranges.iter().map(|&(file, start, len)| Range { file, start, end: start + len }).collect()
            };
            let bytes = |chunk: Chunk| -> Vec<Range> {
                let range = |part: &Part| {
                    let Segment { file, len, offset, .. } = part.segment;
                    Range { file, start: offset, end: offset + u64::from(len) }
                };
                chunk.parts.iter().map(range).collect()
            };
            let (ranges, set) = (of(ranges), RangeSet::new(&of(cancelled)));
            let mut plan = Plan::of_sizes(&[16 << 20; 2], 8192);
            plan.add(&ranges).unwrap();
            let mut seen: Vec<Range> = (0..taken).filter_map(|_| plan.next_chunk()).flat_map(bytes).collect();
            // The worker must see the bytes that it has, and the rest without the cancelled bytes.
            let count: u64 = seen.iter().map(|range| range.end - range.start).sum();
            let (mut skip, mut expected, mut expected_cancelled) = (count, Vec::new(), 0);
            for range in ranges.iter().filter(|range| range.start < range.end) {
                let had = skip.min(range.end - range.start);
                skip -= had;
                expected.push(Range { end: range.start + had, ..*range });
                let rest = Range { start: range.start + had, ..*range };
                expected_cancelled += set.take_from(rest, |range| expected.push(range));
            }
            if let Some(chunk) = plan.next_chunk() {
                plan.give_back(&chunk);
            }
            prop_assert_eq!(plan.cancel(&set).unwrap(), expected_cancelled);
            prop_assert_eq!(plan.cancel(&set).unwrap(), 0);
            prop_assert_eq!(plan.pending().count(), plan.ranges.len());
            seen.extend(chunks(&mut plan).into_iter().flat_map(bytes));
            let merged = |ranges: Vec<Range>| {
                let mut all: Vec<Range> = Vec::new();
                for range in ranges.into_iter().filter(|range| range.start < range.end) {
                    match all.last_mut() {
                        Some(last) if last.file == range.file && last.end == range.start => last.end = range.end,
                        _ => all.push(range),
                    }
                }
                all
            };
            prop_assert_eq!(merged(seen), merged(expected));
        }

        /// Every byte comes once and in order. Parts are aligned, lie within frames, and have whole pages.
        #[test]
        fn chunks_are_the_ranges(
            ranges in prop::collection::vec((0u32..3, 0u64..9 << 20, 0u64..5 << 20), 0..40),
            page_shift in 12u32..=21,
            unit_shifts in prop::array::uniform2(12u32..=21),
        ) {
            let (size, page) = (16 << 20, 1usize << page_shift);
            let mut plan = Plan::of_sizes(&[size; 3], page);
            plan.units[1..].copy_from_slice(&unit_shifts.map(|shift| 1 << shift));
            let units = plan.units.clone();
            let ranges: Vec<Range> =
                ranges.iter().map(|&(file, start, len)| Range { file, start, end: start + len }).collect();
            plan.add(&ranges).unwrap();
            let chunks = chunks(&mut plan);
            let mut expected: VecDeque<Range> = ranges.iter().copied().filter(|r| r.start < r.end).collect();
            for chunk in &chunks {
                let mut used = 0;
                prop_assert!(chunk.parts.len() <= SEGMENTS);
                for part in &chunk.parts {
                    let Segment { file, len, offset, at } = part.segment;
                    let unit = units[file as usize];
                    prop_assert_eq!(part.at, u32::next_multiple_of(used, unit as u32));
                    prop_assert_eq!((part.from % unit, part.to % unit), (0, 0));
                    prop_assert!(part.from <= offset && offset + u64::from(len) <= part.to);
                    prop_assert!(offset - part.from < unit && part.to - (offset + u64::from(len)) < unit);
                    prop_assert_eq!(u64::from(at - part.at), offset - part.from);
                    used = part.at + (part.to - part.from) as u32;
                    let front = expected.front_mut().unwrap();
                    prop_assert_eq!((front.file, front.start), (file, offset));
                    front.start += u64::from(len);
                    if front.start == front.end {
                        expected.pop_front();
                    } else {
                        prop_assert_eq!(front.start % page as u64, 0);
                    }
                }
                prop_assert!(used as usize <= FRAME);
            }
            prop_assert!(expected.is_empty());
        }
    }
}
