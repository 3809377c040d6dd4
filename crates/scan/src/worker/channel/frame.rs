//! The frame that a worker reads, page by page: its pages, and errors in place of unreadable ones.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Channel, add};
use crate::board::{Board, Content, Judgment, SEGMENTS, Segment, UNIT};
use crate::memory::FRAME;
use crate::plan::Range;
use crate::ranges::RangeSet;
use crate::worker::Piece;
use crate::worker::lender::Lent;
use crate::worker::pieces::Rest;
use crate::{Error, Result};

/// The frame that a worker reads. A part of it has not been handed out.
pub(super) struct InUse {
    lent: Arc<Lent>,
    frame: usize,
    /// Number of segments, and the next of them to begin.
    segments: usize,
    segment: usize,
    rest: Option<Rest>,
    judgment: Judgment,
    /// The remaining parts of the frame after the current one, if something was cancelled, from the last to the first. All
    /// segments have begun then.
    later: Vec<(Judgment, Segment)>,
    /// Whether some of the frame could not be read.
    faulty: bool,
    read_began_ns: u64,
}

impl InUse {
    /// Whether all of it was handed out.
    fn is_over(&self) -> bool {
        self.rest.is_none_or(|rest| rest.left().len == 0)
            && self.later.is_empty()
            && self.segment == self.segments
    }

    /// The next piece. `None`: the board's content is invalid.
    fn next(&mut self, board: &Board, page: usize) -> Option<Segment> {
        loop {
            if let Some(segment) = self.rest.as_mut().and_then(Rest::next) {
                return Some(segment);
            }
            let (judgment, segment) = match self.later.pop() {
                Some(later) => later,
                None => self.begin(board)?,
            };
            (self.judgment, self.rest) = (judgment, Some(Rest::new(segment, page)));
        }
    }

    /// The next segment of the board, if it is valid.
    fn begin(&mut self, board: &Board) -> Option<(Judgment, Segment)> {
        if self.segment == self.segments {
            return None;
        }
        let words = &board.segments(self.lent.slot())[self.segment];
        self.segment += 1;
        let segment = words.get();
        let end = segment.at.checked_add(segment.len);
        if segment.offset > u64::MAX / 2 || end.is_none_or(|end| end as usize > FRAME) {
            return None;
        }
        Some((words.judgment(), segment))
    }

    /// Removes ranges from the part that was not handed out. Returns the number of bytes that it removed.
    fn cancel(&mut self, board: &Board, ranges: &RangeSet) -> u64 {
        let mut all = Vec::new();
        all.extend(self.rest.take().map(|rest| (self.judgment, rest.left())));
        all.extend(std::mem::take(&mut self.later).into_iter().rev());
        while let Some(more) = self.begin(board) {
            all.push(more);
        }
        let mut cancelled = 0;
        for (judgment, segment) in all {
            let Segment { file, len, offset, at } = segment;
            let range = Range { file, start: offset, end: offset + u64::from(len) };
            cancelled += ranges.take_from(range, |Range { start, end, .. }| {
                let (len, at) = ((end - start) as u32, at + (start - offset) as u32);
                self.later.push((judgment, Segment { file, len, offset: start, at }));
            });
        }
        self.later.reverse();
        cancelled
    }
}

impl Channel {
    /// Takes the next frame of which the worker wants any part. Returns whether there was one.
    pub(super) fn take(&mut self) -> Result<bool> {
        while self.in_use.is_none() {
            let Some(slot) = self.slots().find(|slot| self.lender.board.entries()[*slot].word.take()) else {
                return Ok(false);
            };
            self.begin(slot)?;
        }
        Ok(true)
    }

    /// Begins the frame of an entry that was taken.
    fn begin(&mut self, slot: usize) -> Result<()> {
        let board = self.lender.board.clone();
        let now = self.lender.clock.now();
        if let Some(since) = self.starved_since.take() {
            add(&board.worker().starved_ns, now.saturating_sub(since));
            // Withdraws the announcement of a worker that polls. Only the service withdraws that of a worker that watches.
            if self.watch.is_none() {
                board.service().sleeper.awake();
            }
            self.lender.since.store(now, Relaxed);
        }
        let _ = self.lender.since.compare_exchange(0, now, Relaxed, Relaxed);
        let lent = Lent::new(&self.lender, slot, now);
        let number = self.taken;
        self.taken += 1;
        self.cursor = (slot + 1) % board.entries().len();
        let Content { frame, segments, faulty, read_began_ns } = board.entries()[slot].content();
        if segments == 0 {
            return Err(Error::Protocol("the service published a page of nothing".into()));
        }
        let mut in_use = InUse {
            lent,
            frame: frame as usize,
            segments: (segments as usize).min(SEGMENTS),
            segment: 0,
            rest: None,
            judgment: Judgment::default(),
            later: Vec::new(),
            faulty,
            read_began_ns,
        };
        self.cancelled.retain(|(before, _)| *before > number);
        for (_, ranges) in &self.cancelled {
            // These bytes were counted when they were cancelled.
            in_use.cancel(&board, ranges);
        }
        // A frame with nothing left to hand out is returned at once.
        self.in_use = (!in_use.is_over()).then_some(in_use);
        Ok(())
    }

    /// The next page of the frame in use. The frame must not be over.
    pub(super) fn next_piece(&mut self) -> Result<(Piece, Arc<Lent>)> {
        let mut in_use = self.in_use.take().expect("checked by the caller");
        let place = in_use.next(&self.lender.board, self.page_size).and_then(|segment| {
            let end = (segment.at as usize).checked_add(segment.len as usize).filter(|end| *end <= FRAME)?;
            let start = in_use.frame.checked_mul(FRAME)?;
            start.checked_add(end).filter(|end| *end <= self.lender.frames.bytes())?;
            Some((segment, start + segment.at as usize))
        });
        // If it is invalid, the frame is returned.
        let Some((segment, at)) = place else {
            return Err(Error::Protocol("the service published a page outside of its memory".into()));
        };
        let Segment { file, offset, len, .. } = segment;
        let (judgment, read_began_ns, lent) = (in_use.judgment, in_use.read_began_ns, in_use.lent.clone());
        let fault = in_use.faulty.then(|| fault(&self.lender.board, lent.slot(), segment)).flatten();
        if !in_use.is_over() {
            self.in_use = Some(in_use);
        }
        if let Some(error) = fault {
            return Err(error);
        }
        lent.add_bytes(u64::from(len));
        if !self.lender.is_watched && !judgment.is_stable {
            self.unstable += 1;
        }
        // SAFETY: the range was checked to be within the mapping.
        let start = unsafe { self.lender.frames.start().add(at) };
        let (len, channel) = (len as usize, self.lender.channel);
        Ok((Piece { file, offset, start, len, read_began_ns, judgment, channel }, lent))
    }

    /// Adds ranges to the scan, after its present ones.
    ///
    /// # Errors
    /// The channel would have more than [`MAX_PENDING_RANGES`](crate::MAX_PENDING_RANGES) ranges that are announced and not read
    /// yet. Or a range is not in its file, or the service has ended.
    pub fn notify_ranges(&mut self, ranges: &[Range]) -> Result<()> {
        self.lender.check_process()?;
        self.lender.link.notify_ranges(ranges)
    }

    /// Cancels announced ranges: bytes of them that have not been handed out will not be, wherever they are in the scan. Returns
    /// the number of these bytes. Reads of them in flight are discarded when they complete. Ranges that are announced again after
    /// this are delivered.
    ///
    /// # Errors
    /// A range is not in its file, the channel belongs to a pool, or the service has ended.
    pub fn cancel_ranges(&mut self, ranges: &[Range]) -> Result<u64> {
        self.lender.check_process()?;
        let cancelled = self.lender.link.cancel_ranges(ranges)?;
        let ranges = RangeSet::new(ranges);
        let mut here = 0;
        if let Some(mut in_use) = self.in_use.take() {
            here = in_use.cancel(&self.lender.board, &ranges);
            self.in_use = (!in_use.is_over()).then_some(in_use);
        }
        if cancelled.before > self.taken {
            self.cancelled.push((cancelled.before, ranges));
        }
        self.cancelled_here += here;
        Ok(cancelled.bytes + here)
    }
}

/// The fault of a page within the frame, if it has one.
fn fault(board: &Board, slot: usize, page: Segment) -> Option<Error> {
    let first = page.at as usize / UNIT;
    let units = &board.faults(slot)[first..(page.at as usize + page.len as usize).div_ceil(UNIT)];
    let (index, fault) = units.iter().enumerate().find_map(|(index, word)| Some((index, word.get()?)))?;
    // The position of the unit in the file. A page may begin within its first unit.
    let start = page.offset.saturating_sub(u64::from(page.at) % UNIT as u64);
    Some(Error::of(fault, page.file, page.offset, start.saturating_add((index * UNIT) as u64)))
}
