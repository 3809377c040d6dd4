//! The frame that a worker reads, page by page: the pages that are there, and the errors in the place of others.

use std::sync::atomic::Ordering::Relaxed;

use super::{Channel, Got, add};
use crate::board::{Board, Content, SEGMENTS, Segment, UNIT, Want};
use crate::memory::FRAME;
use crate::worker::Piece;
use crate::worker::pieces::Rest;
use crate::{Error, Result};

/// The frame that a worker reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct InUse {
    slot: usize,
    frame: usize,
    segments: usize,
    /// The next segment to begin.
    segment: usize,
    rest: Option<Rest>,
    bytes: u64,
    /// Some of it could not be had.
    faulty: bool,
}

impl Channel {
    /// Takes the next frame. Whether it was there.
    pub(super) fn take(&mut self) -> Result<bool> {
        let Some(slot) = self.slots().find(|slot| self.board.entries()[*slot].word.take()) else {
            return Ok(false);
        };
        let entry = &self.board.entries()[slot];
        let now = self.clock.now();
        let words = self.board.worker();
        if let Some(since) = self.starved_since.take() {
            add(&words.starved_ns, now.saturating_sub(since));
            // If it polled.
            self.board.service().sleeper.awake();
            self.since = now;
        }
        if self.since == 0 {
            self.since = now;
        }
        words.first_access_ns.store(now, Relaxed);
        let Content { frame, segments, faulty } = entry.content();
        self.in_use = Some(InUse {
            slot,
            frame: frame as usize,
            segments: (segments as usize).min(SEGMENTS),
            segment: 0,
            rest: None,
            bytes: 0,
            faulty,
        });
        if segments == 0 {
            self.finish();
            return Err(Error::Protocol("the service published a page of nothing".into()));
        }
        Ok(true)
    }

    /// The next page of the frame that is in use.
    pub(super) fn next_piece(&mut self) -> Result<Got> {
        let in_use = self.in_use.as_mut().expect("checked by the caller");
        let found = loop {
            if let Some(segment) = in_use.rest.as_mut().and_then(Rest::next) {
                break Some(segment);
            }
            if in_use.segment == in_use.segments {
                break None;
            }
            let segment = self.board.segments(in_use.slot)[in_use.segment].get();
            let end = segment.at.checked_add(segment.len);
            if segment.offset > u64::MAX / 2 || end.is_none_or(|end| end as usize > FRAME) {
                break None;
            }
            in_use.rest = Some(Rest::new(segment, self.page_size));
            in_use.segment += 1;
        };
        let place = found.and_then(|segment| {
            let end = (segment.at as usize).checked_add(segment.len as usize).filter(|end| *end <= FRAME)?;
            let start = in_use.frame.checked_mul(FRAME)?;
            start.checked_add(end).filter(|end| *end <= self.frames.bytes())?;
            Some((segment, start + segment.at as usize))
        });
        let Some((segment, at)) = place else {
            self.finish();
            return Err(Error::Protocol("the service published a page outside of its memory".into()));
        };
        if in_use.faulty
            && let Some(error) = fault(&self.board, in_use.slot, segment)
        {
            self.pass();
            return Err(error);
        }
        in_use.bytes += u64::from(segment.len);
        self.held = true;
        // SAFETY: within the mapping, as was checked.
        let start = unsafe { self.frames.start().add(at) };
        Ok(Got::Page(Piece { file: segment.file, offset: segment.offset, start, len: segment.len as usize }))
    }

    /// A page was returned, or is none.
    pub(super) fn pass(&mut self) {
        let in_use = self.in_use.as_mut().expect("what is out is of a frame");
        if in_use.rest.is_some_and(|mut rest| rest.next().is_none()) {
            in_use.rest = None;
        }
        if in_use.rest.is_none() && in_use.segment == in_use.segments {
            self.finish();
        }
    }

    /// The frame's last page was returned: the service may have it.
    fn finish(&mut self) {
        let Some(in_use) = self.in_use.take() else { return };
        let (now, words) = (self.clock.now(), self.board.worker());
        add(&words.ingest_ns, now.saturating_sub(self.since));
        add(&words.bytes, in_use.bytes);
        add(&words.pages, 1);
        words.returned_ns.store(now, Relaxed);
        words.first_access_ns.store(0, Relaxed);
        self.since = now;
        self.returned += 1;
        self.cursor = (in_use.slot + 1) % self.board.entries().len();
        self.board.entries()[in_use.slot].word.finish();
        if words.bell.must_ring(Want::Returned) {
            add(&words.calls, 1);
            self.link.ring();
        }
    }
}

/// What is wrong with a page that is in a frame's bounds, if anything is.
fn fault(board: &Board, slot: usize, page: Segment) -> Option<Error> {
    let first = page.at as usize / UNIT;
    let units = &board.faults(slot)[first..(page.at as usize + page.len as usize).div_ceil(UNIT)];
    let (index, fault) = units.iter().enumerate().find_map(|(index, word)| Some((index, word.get()?)))?;
    // Where the unit is in the file; a page may begin within its first one.
    let start = page.offset.saturating_sub(u64::from(page.at) % UNIT as u64);
    Some(Error::of(fault, page.file, page.offset, start.saturating_add((index * UNIT) as u64)))
}
