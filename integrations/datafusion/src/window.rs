//! The ranges of one stream that are fetched: those that its decoder waits for, and those that it asks for next.
//!
//! A reader holds at most [`MAX_RANGES_HELD`] ranges, so a window has so many *slots* for each of its readers. A slot is taken by a
//! fetch, and by a range that was handed to the decoder without a copy, until the decoder drops it.
//!
//! Invariants:
//! - At most half of the slots are the decoder's. When they are, what else it asks for is copied. So there are slots in which
//!   something can be fetched, however long the decoder holds what it has.
//! - What the decoder waits for is fetched before anything else. If there is no slot for it, what was fetched ahead is given up.
//! - Nothing is handed out before the file was found to be current after it had arrived.
//! - Bytes of a daemon's ranges are handed out as copies that were [checked](crate::deliver).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_scan::{Error, Fetch, MAX_RANGES_HELD, PinnedRange, Result};
use bytes::Bytes;

use crate::buffers::{Buffer, Buffers};
use crate::deliver::{copy, lend, may_be_lent};
use crate::limits::MIN_PINNED_BYTES;
use crate::local::Opened;
use crate::predict::Predictor;
use crate::spans::{Piece, Span, pieces};

/// The ranges that a stream fetches.
pub struct Window {
    opened: Opened,
    predictor: Predictor,
    buffers: Buffers,
    /// Most bytes that are fetched ahead.
    read_ahead: u64,
    unit: u64,
    /// The ranges that are fetched ahead, in the order of the requests to come.
    ahead: VecDeque<(Span, Fetch)>,
    /// Slots that are the decoder's.
    lent: Arc<AtomicUsize>,
}

impl Window {
    /// The window of a file that was opened.
    pub fn new(opened: Opened, predictor: Predictor, buffers: Buffers, read_ahead: u64) -> Self {
        let unit = opened.readers[0].alignment() as u64;
        let lent = Arc::default();
        Self { opened, predictor, buffers, read_ahead, unit, ahead: VecDeque::new(), lent }
    }

    /// How many ranges of the service ranges of the decoder are, or a few less.
    pub fn ranges_of(ranges: &[Range<u64>]) -> usize {
        pieces(ranges.iter().enumerate(), 1).len()
    }

    /// The row group in whose column chunks all ranges are.
    pub fn group_of(&self, ranges: &[Range<u64>]) -> Option<usize> {
        self.predictor.group_of_all(ranges)
    }

    /// The bytes of ranges of a row group. `None`: the file is not what was listed any more.
    ///
    /// # Errors
    /// The service cannot read them, or has ended, or its connection ended before the bytes were copied.
    pub async fn read(&mut self, group: usize, ranges: &[Range<u64>]) -> Result<Option<Vec<Bytes>>> {
        self.predictor.note(group, ranges);
        let pieces = self.pieces(ranges);
        let mut wanted: VecDeque<Span> = pieces.iter().map(|piece| piece.span).collect();
        let mut next = self.next_spans();
        // What was fetched for a row group that the decoder has skipped.
        self.ahead.retain(|(span, _)| wanted.contains(span) || next.contains(span));
        next.retain(|span| !self.ahead.iter().any(|(ahead, _)| ahead == span) && !wanted.contains(span));
        let mut begun = VecDeque::new();
        let mut answer = vec![Bytes::new(); ranges.len()];
        // Ranges that are cut, as far as their parts have arrived.
        let mut parts: BTreeMap<usize, Buffer> = BTreeMap::new();
        for Piece { span, ranges: numbers, is_part, .. } in pieces {
            let arrived = self.arrive(&mut begun, &mut wanted, &mut next).await?;
            if is_part {
                for number in numbers {
                    let len = (ranges[number].end - ranges[number].start) as usize;
                    copy(&arrived, parts.entry(number).or_insert_with(|| self.buffers.take(len)))?;
                }
                continue;
            }
            let bytes = match span.len as u64 >= MIN_PINNED_BYTES && self.may_lend() {
                true => lend(arrived, &self.lent),
                false => {
                    let mut buffer = self.buffers.take(span.len);
                    copy(&arrived, &mut buffer)?;
                    buffer.into_bytes()
                }
            };
            for number in numbers {
                answer[number] = bytes.slice(span.place_of(&ranges[number]));
            }
        }
        for (number, buffer) in parts {
            answer[number] = buffer.into_bytes();
        }
        self.fetch_ahead(&mut next)?;
        Ok(self.opened.is_current().then_some(answer))
    }

    fn may_lend(&self) -> bool {
        let slots = self.opened.readers.len() * MAX_RANGES_HELD;
        may_be_lent(&self.opened.readers[0]) && self.lent.load(Ordering::Relaxed) < slots / 2
    }

    /// The pieces of ranges: those that were fetched ahead, as they were, and what is not in them.
    fn pieces(&self, ranges: &[Range<u64>]) -> Vec<Piece> {
        let mut known: Vec<Piece> = Vec::new();
        let mut rest = Vec::new();
        for (number, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let ahead = self.ahead.iter().map(|(span, _)| *span).find(|span| span.covers(range));
            let Some(span) = ahead else {
                rest.push((number, range));
                continue;
            };
            match known.iter_mut().find(|piece| piece.span == span) {
                Some(piece) => piece.ranges.push(number),
                None => known.push(Piece::new(span, number)),
            }
        }
        known.extend(pieces(rest, self.unit));
        known.sort_by_key(|piece| piece.span.start);
        known
    }

    /// The requests that the decoder is going to make, as far as they may be fetched now.
    fn next_spans(&self) -> VecDeque<Span> {
        let (mut next, mut bytes) = (VecDeque::new(), 0);
        for request in self.predictor.next() {
            for Piece { span, .. } in pieces(request.iter().enumerate(), self.unit) {
                bytes += span.len as u64;
                if bytes > self.read_ahead {
                    return next;
                }
                next.push_back(span);
            }
        }
        next
    }

    /// Waits for the first span that is wanted and has not arrived, while the following ones and what comes next are fetched.
    async fn arrive(
        &mut self,
        begun: &mut VecDeque<Fetch>,
        wanted: &mut VecDeque<Span>,
        next: &mut VecDeque<Span>,
    ) -> Result<PinnedRange> {
        loop {
            while let Some(&span) = wanted.front() {
                let Some(fetch) = self.take_or_fetch(span)? else { break };
                wanted.pop_front();
                begun.push_back(fetch);
            }
            if wanted.is_empty() {
                self.fetch_ahead(next)?;
            }
            if let Some(fetch) = begun.pop_front() {
                return fetch.await;
            }
            // Every slot is the decoder's, which has half of them, or has something that was fetched ahead.
            if self.ahead.pop_back().is_none() {
                return Err(Error::Held);
            }
        }
    }

    /// A fetch of a span. `None`: there is no slot for it.
    fn take_or_fetch(&mut self, span: Span) -> Result<Option<Fetch>> {
        match self.ahead.iter().position(|(ahead, _)| *ahead == span) {
            Some(at) => Ok(self.ahead.remove(at).map(|(_, fetch)| fetch)),
            None => self.fetch(span),
        }
    }

    fn fetch(&self, span: Span) -> Result<Option<Fetch>> {
        for reader in &self.opened.readers {
            match reader.fetch(span.start, span.len) {
                Ok(fetch) => return Ok(Some(fetch)),
                Err(Error::Held) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn fetch_ahead(&mut self, next: &mut VecDeque<Span>) -> Result<()> {
        while let Some(&span) = next.front() {
            let Some(fetch) = self.fetch(span)? else { break };
            next.pop_front();
            self.ahead.push_back((span, fetch));
        }
        Ok(())
    }
}
